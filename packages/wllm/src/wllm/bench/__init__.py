"""`wllm bench`: measure wLLM, and other engines beside it, on this machine.

Each command is a module that `command.py` imports when it runs, so `wllm bench --help` loads the standard library only.
What a command measures becomes the rows of a `Report`, which is a table on the terminal and a JSON file.
"""
