"""The vLLM plugin that registers our weight transfer.

It is not in our package `worker`: loading it there would import `worker`, also where a trainer has a ``worker.py`` of its own.
"""

import logging

from quirks_core.facts.installation import HiddenPackageError, MissingPackageError, check_ours


def register_transfer() -> None:
    """Registers the weight transfer; an entry point of the group ``vllm.general_plugins``, called in every process of vLLM.

    Without model-quirks-worker there is none. Where another project's ``worker.py`` is in the way, it logs one warning: an
    engine without a plan of ours works without.

    Raises:
        ImportError: vLLM is older than its native weight transfer.
    """
    try:
        check_ours("worker")
    except MissingPackageError:
        return
    except HiddenPackageError as error:
        logging.getLogger("model_quirks").warning("%s", error)
        return
    from worker.refit.engine.transfer import register

    register()
