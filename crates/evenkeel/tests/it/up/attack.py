"""What a program of the mesh tries on its neighbours and on the machine; a line for each attempt, with what came of it."""

import ctypes
import errno
import glob
import os
import signal
import socket
import subprocess
import sys

if "POD_NAME" not in os.environ:
    sys.exit("only as a program of a mesh: elsewhere it would do what it tries")
STATE, DATA = sys.argv[1], os.environ["EVENKEEL_DATA_DIR"]
LIBC = ctypes.CDLL(None, use_errno=True)
PTRACE_ATTACH, CLONE_NEWNS, CLONE_NEWUSER, MNT_DETACH = 16, 0x20000, 0x10000000, 2


def attempt(name, action):
    try:
        came = action()
    except OSError as error:
        came = errno.errorcode[error.errno]
    print(f"{name}: {came}", flush=True)


def files_of_the_mesh():
    shown = os.path.dirname(DATA)
    found = [os.path.join(folder, file) for folder, _, files in os.walk(STATE) for file in files]
    return sorted(file for file in found if not file.startswith((shown, os.getcwd()))) or "none"


def in_child(action):
    """What is done to the namespaces is done to those of a process that ends."""
    child = os.fork()
    if child == 0:
        os._exit(0 if action() else 1)
    return "done" if os.waitpid(child, 0)[1] == 0 else "refused"


def call(function, *arguments):
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), "")
    return "done"


def uncover():
    """A user namespace of one's own gives all capabilities in it, but what was there before stays covered."""
    if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        return False
    uncovered = LIBC.umount2(STATE.encode(), MNT_DETACH) == 0
    return uncovered or os.path.exists(f"{STATE}/control")


def secrets():
    """Variables of another program."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                found += [path] if b"victims-secret" in file.read() else []
        except OSError:
            pass
    return found or "none"


def others():
    own = {os.getpid(), os.getppid(), 1}
    seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return sorted(seen - own) if "alone" in sys.argv else "left out"


def mark():
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 1338)
    return "done"


def low_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 81))
    return "done"


def ask_for_another():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(f"{STATE}/exec.sock")
    return "done"


def capabilities():
    with open("/proc/self/status") as status:
        sets = {line.split()[1] for line in status if line.startswith("Cap")}
    return "none" if sets == {"0" * 16} else sets


def root_by_program():
    """`su` and its like run as their owner, wherever that is allowed."""
    with open("/proc/self/status") as status:
        return [line.split()[1] for line in status if line.startswith("NoNewPrivs")][0]


def write(path):
    with open(path, "a") as file:
        file.write("")
    return "done"


def setting():
    try:
        return write("/proc/sys/net/ipv4/ip_forward")
    except OSError as error:
        return "refused" if error.errno in (errno.EACCES, errno.EROFS) else error


attempt("files of the mesh", files_of_the_mesh)
attempt("the key of the authority", lambda: open(f"{STATE}/control/ca-key.pem").read())
attempt("the key of tokens", lambda: open(f"{STATE}/control/token-key.pem").read())
attempt("another container by exec", ask_for_another)
attempt("another's variables", secrets)
attempt("other processes", others)
attempt("a signal to process 1", lambda: os.kill(1, signal.SIGKILL) or "done" if os.getuid() else "harmless")
attempt("tracing process 1", lambda: call(LIBC.ptrace, PTRACE_ATTACH, 1, None, None))
attempt("a mount", lambda: call(LIBC.mount, b"none", b"/mnt", b"tmpfs", 0, None))
attempt("taking the cover off", lambda: in_child(uncover))
attempt("another host name", lambda: socket.sethostname("elsewhere"))
attempt("the proxy's mark", mark)
attempt("a setting of the kernel", setting)
attempt("capabilities", capabilities)
attempt("no new privileges", root_by_program)
attempt("a port below 1024", low_port)
attempt("a file of its own", lambda: write(f"{DATA}/file"))
attempt("a file in its directory", lambda: write("written"))
attempt("its standard output by name", lambda: write("/dev/stdout") if "alone" in sys.argv else "left out")
print("user", os.getuid(), flush=True)
