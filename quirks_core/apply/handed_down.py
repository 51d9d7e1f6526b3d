"""The names under which a plan is handed down to the processes of an engine, and the switch of the hook."""

from __future__ import annotations

#: Hands down what every process carries out, as JSON.
PLAN_VARIABLE = "MODEL_QUIRKS_PLAN"
#: Hands down the folder in which the processes of a worker's engine keep what vLLM logs as errors.
FOLDER_VARIABLE = "MODEL_QUIRKS_FOLDER"
#: Puts quirks in force in every engine of vLLM, without a line of code (`quirks_core.hook`).
HOOK_VARIABLE = "MODEL_QUIRKS"
#: Process id of the front end that an engine core serves alone, and ends with; workers get their core's.
FRONT_END_VARIABLE = "MODEL_QUIRKS_FRONT_END"
#: Our names in the entry-point group ``vllm.general_plugins``.
VLLM_PLUGINS = ("model_quirks", "model_quirks_transfer")
#: Our key in vLLM's ``additional_config``, in which a plan travels to every process of an engine.
CARRIED = "model_quirks"
