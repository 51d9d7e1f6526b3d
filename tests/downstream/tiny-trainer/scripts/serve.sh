#!/bin/sh
# VLLM_USE_V1=1 is a note, and sets nothing.
export VLLM_ATTENTION_BACKEND=FLASHINFER
exec vllm serve ./model \
  --swap-space 16 \
  --compilation-config '{
    "mode": 3}' \
  --max_num_seqs 64 | tee server.log --append
