//! Pods with users of their own (`hostUsers: false`): the network belongs to the Pod's user namespace, in which the proxy's user is another
//! one than on the node.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;

use evenkeel_capture::{Capture, iptables, nftables};
use evenkeel_testkit::eventually;
use nix::sched::{CloneFlags, setns};

/// The first of the Pod's users on the node.
const FIRST: u32 = 100_000;

/// A process that holds namespaces of users and of a network, as the container runtime creates them.
struct Pod(Child);

impl Pod {
    /// `None`: there are no user namespaces here.
    fn start() -> Option<Self> {
        let child = Command::new("unshare").args(["--user", "--net", "sleep", "600"]).stderr(Stdio::null()).spawn();
        let mut pod = Self(child.expect("unshare starts (util-linux)"));
        let of = |id: &str| fs::metadata(format!("/proc/{id}/ns/user")).map(|found| found.ino()).ok();
        let id = pod.0.id().to_string();
        let is_apart = eventually("the user namespace", || match pod.0.try_wait() {
            Ok(None) => (of(&id)? != of("self")?).then_some(true),
            _ => Some(false),
        });
        if !is_apart {
            return None;
        }
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{id}/{map}"), format!("0 {FIRST} 65536\n")).expect("a map");
        }
        Some(pod)
    }

    /// Runs something on a thread that is in the Pod's network, but not in its user namespace, as the node's agent.
    fn within<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        let network = File::open(format!("/proc/{}/ns/net", self.0.id())).expect("the network");
        thread::scope(|scope| {
            let entered = scope.spawn(move || {
                setns(network, CloneFlags::CLONE_NEWNET).expect("it is entered");
                run()
            });
            entered.join().unwrap_or_else(|problem| std::panic::resume_unwind(problem))
        })
    }

    /// What a program of a user of the Pod reads from a connection to somewhere outside.
    fn call(&self, user: u32) -> String {
        let (user, process) = (user.to_string(), self.0.id().to_string());
        let enter = ["--target", &process, "--user", "--net", "--setuid", &user, "--setgid", &user];
        let script = "exec 3<>/dev/tcp/192.0.2.1/80 && cat <&3";
        let output = Command::new("nsenter").args(enter).args(["timeout", "1", "bash", "-c", script]).output();
        String::from_utf8_lossy(&output.expect("nsenter starts (util-linux)").stdout).into_owned()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn feed(program: &str, arguments: &[&str], script: &str) -> Result<(), String> {
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.as_mut().map_err(|error| error.to_string())?;
    child.stdin.take().expect("its input").write_all(script.as_bytes()).map_err(|error| error.to_string())?;
    let mut message = String::new();
    let mut errors = child.stderr.take().expect("its errors");
    std::io::Read::read_to_string(&mut errors, &mut message).map_err(|error| error.to_string())?;
    if child.wait().is_ok_and(|status| status.success()) { Ok(()) } else { Err(message) }
}

#[test]
fn the_proxys_user_is_that_of_the_pod() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let Some(pod) = Pod::start() else { return };
    let rules = Capture::default().rulesets();
    let ruleset = rules.first().expect("rules of IPv4");
    let network = "link set lo up\nlink add eth0 type veth peer name eth1\naddr add 10.9.0.1/24 dev eth0\n\
                   link set eth0 up\nlink set eth1 up\nroute add default dev eth0\n";
    let listener = pod.within(|| {
        feed("ip", &["-batch", "-"], network).expect("a network");
        feed("nft", &["-f", "-"], &nftables::render(ruleset))
            .expect("rules of nftables from outside of the user namespace");
        TcpListener::bind("0.0.0.0:15001").expect("it listens")
    });
    thread::spawn(move || listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"proxy"))));
    assert_eq!(pod.call(1000), "proxy");
    assert_eq!(pod.call(0), "proxy");
    assert_eq!(pod.call(1337), "", "the proxy's own connections go out");

    // The kernel refuses users in rules of iptables that come from another user namespace: such a Pod does not start rather than start
    // with rules that take the proxy for an application.
    let refused = pod.within(|| feed("iptables-nft-restore", &["--noflush"], &iptables::render(ruleset)));
    assert!(refused.is_err(), "{refused:?}");
}
