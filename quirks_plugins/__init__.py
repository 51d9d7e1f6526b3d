"""The built-in quirks: one quirk, one file, in a folder named after its ModelFlag; rules of sizes share a file, as rows.

Patches stand in their quirk's file, or in ``*_patches.py`` beside it. They import vLLM, torch and transformers when they run,
because a declaration is read without these, and a patch may come into force while vLLM is being imported.
"""
