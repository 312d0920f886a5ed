//! Networks by the addresses in them.

use std::fs::File;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use evenkeel_cni::networks::{Networks, NoNetwork, within};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// A network with these addresses, held by a file in a folder as a container runtime holds it.
fn network(folder: &Path, name: &str, addresses: &[&str]) -> u64 {
    let path = folder.join(name);
    File::create(&path).expect("a file");
    let up = ["link", "set", "lo", "up"].map(str::to_owned).to_vec();
    let add = |address: &&str| ["addr", "add", address, "dev", "lo"].map(str::to_owned).to_vec();
    let commands: Vec<Vec<String>> = std::iter::once(up).chain(addresses.iter().map(add)).collect();
    let created = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network");
        for command in commands {
            assert!(Command::new("ip").args(&command).status().expect("ip runs").success(), "{command:?}");
        }
        let here = Path::new("/proc/thread-self/ns/net");
        mount(Some(here), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("it is bound");
        std::fs::metadata(here).expect("a network").ino()
    });
    created.join().expect("a network")
}

#[test]
fn a_pod_has_the_network_with_its_address_and_no_other() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // Mounts of a thread of its own end with it.
    let tested = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS).expect("mounts");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).expect("private");
        let folder = tempfile::tempdir().expect("a directory");
        mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("a file system");
        let first = network(folder.path(), "cni-1", &["10.9.0.1/24", "fd09::1/64"]);
        network(folder.path(), "cni-2", &["10.9.0.2/24"]);
        // A program with NET_ADMIN gives its own network the address of another Pod.
        network(folder.path(), "cni-3", &["10.9.0.3/24", "10.9.0.2/24"]);
        // More addresses than are read of one network.
        let many: Vec<String> = (0..300).map(|n| format!("10.8.{}.{}/32", n / 200, n % 200)).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let crowded = network(folder.path(), "cni-4", &many);
        File::create(folder.path().join("no-network")).expect("a file");
        let networks = Networks::read(folder.path()).expect("networks");
        let check = |addresses: &[&str], expected: Result<u64, NoNetwork>| {
            let wanted: Vec<IpAddr> = addresses.iter().map(|address| address.parse().expect("an address")).collect();
            let found = networks.with(&wanted).map(|network| {
                let inode = || std::fs::metadata("/proc/thread-self/ns/net").expect("a network").ino();
                within(network, inode).expect("it is entered")
            });
            assert_eq!(found, expected, "{addresses:?}");
        };
        check(&["10.9.0.1"], Ok(first));
        check(&["fd09::1", "10.9.0.1"], Ok(first));
        check(&["10.9.0.2"], Err(NoNetwork::Ambiguous));
        check(&["10.8.0.1"], Ok(crowded));
        check(&["10.8.1.99"], Err(NoNetwork::Absent));
        check(&["10.9.0.9"], Err(NoNetwork::Absent));
        check(&["127.0.0.1"], Err(NoNetwork::Absent));
        check(&[], Err(NoNetwork::Absent));
    });
    tested.join().expect("it holds");
}
