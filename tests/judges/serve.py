"""Runs judges, each in a child that is forked after the imports they share: importing torch or DeepSpeed takes longer than most verdicts.

    serve.py ASK ANSWER MODULE...      ASK, ANSWER: FIFOs; ends when nobody writes into ASK any more

A request is one line of words, each followed by an ASCII 31: the folder to be in, the file for what is printed, the script and its arguments.
The answer is one line, the exit status; 124 when the judge and what it started were ended after 300 s.
"""
import contextlib, importlib, os, runpy, signal, sys, time, traceback

LIMIT = 300


def judge(folder, said, script, *arguments):
    os.setsid()
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def waited_for(child):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) & 255
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


def main():
    for module in sys.argv[3:]:
        with contextlib.suppress(ImportError):  # whoever needs it will say so
            importlib.import_module(module)
    if "torch" in sys.modules:  # a child cannot use the threads that its parent started
        sys.modules["torch"].set_num_threads(1)
    with open(sys.argv[1]) as ask, open(sys.argv[2], "w") as answer:
        for line in ask:
            child = os.fork()
            if child == 0:
                judge(*line.rstrip("\n").split("\x1f")[:-1])
            print(waited_for(child), file=answer, flush=True)


if __name__ == "__main__":
    main()
