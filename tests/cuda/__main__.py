"""Write the kept CUDA text anew: `python -m tests.cuda`. Read the difference before committing."""

from tests.cuda.programs import PROGRAMS, path, text

if __name__ == "__main__":
    for name in PROGRAMS:
        path(name).write_text(text(name), encoding="utf-8")
        print(path(name))
