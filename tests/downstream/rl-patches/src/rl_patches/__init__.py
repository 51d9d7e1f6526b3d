"""Three patches that NeMo RL writes into the files of the installed vLLM (``vllm/patches.py`` at 7ea279ab), as quirks."""
