//! Addresses and links of the mesh's private network: a bridge, and a veth pair per replica.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_capture::{Capture, Family, nftables};
use nix::ifaddrs::getifaddrs;
use nix::mount::{MsFlags, mount};
use nix::net::if_::InterfaceFlags;

use crate::addresses::{BRIDGE, BRIDGE_ADDRESS, NAME_SERVER, POD_PREFIX};
use crate::egress::rules::{self, EgressAccess};
use crate::network_error::NetworkError;
use crate::tools::Tools;

/// The bridge's link address. By default a bridge has the lowest address of its ports, which changes as replicas are
/// added; packets to the old address would be lost for a second or more.
const BRIDGE_MAC: &str = "02:ee:0a:f4:00:01";
/// Maximum number of replicas in one run: 254 subnets of 250 addresses, far more than one machine can run.
pub const MAX_PODS: u32 = 254 * 250;

/// How long the kernel may take to activate a bridge port.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between two checks of it.
const CARRIER_PERIOD: Duration = Duration::from_millis(2);

/// The address of the `index`-th replica started in this run, from 10.244.1.1 upwards; `None` past [`MAX_PODS`].
pub fn pod_address(index: u32) -> Option<Ipv4Addr> {
    let third = u8::try_from(index / 250 + 1).ok().filter(|third| *third < 255)?;
    let fourth = u8::try_from(index % 250 + 1).ok()?;
    Some(Ipv4Addr::new(10, 244, third, fourth))
}

/// Brings up loopback and the bridge in the mesh's own network namespace.
pub fn set_up_bridge(tools: &Tools) -> Result<(), NetworkError> {
    tools.ip(&format!(
        "link set lo up\nlink add {BRIDGE} address {BRIDGE_MAC} type bridge\naddr add {BRIDGE_ADDRESS}/{POD_PREFIX} dev {BRIDGE}\nlink set {BRIDGE} up\n"
    ))?;
    Ok(())
}

/// The network of one replica.
#[derive(Debug, Clone)]
pub struct PodNetwork {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its host name: the pod's name.
    pub host_name: String,
    /// Search list of its resolver, from the pod's namespace.
    pub search: String,
    /// How its traffic is captured, if it is.
    pub capture: Option<Capture>,
    /// Folder for the files that are mounted over `/etc`, and for volumes. Only `up` changes it.
    pub folder: PathBuf,
    /// Name of the veth at the bridge, unique in this run.
    pub link: String,
    /// Its access to destinations outside the mesh.
    pub egress: EgressAccess,
}

impl PodNetwork {
    /// The folder of its volumes.
    pub fn volumes(&self) -> PathBuf {
        volumes_in(&self.folder)
    }
}

/// The folder of volumes in that of a replica's mounts.
pub(crate) fn volumes_in(folder: &Path) -> PathBuf {
    folder.join("volumes")
}

/// The resolver's search list in a pod of `namespace`, in Kubernetes' order.
pub fn search_list(namespace: &str, cluster_domain: &str) -> String {
    format!("{namespace}.svc.{cluster_domain} svc.{cluster_domain} {cluster_domain}")
}

/// Prefix length of a replica's own network: only the bridge is a neighbour, and everything else is reached through it, so
/// that the rules in the mesh's network see both directions of each connection ([`crate::service_rules`]).
const OWN_PREFIX: u8 = 32;

/// Sets up veth pair, address, route, rules, resolver and host name; runs inside the replica's fresh namespaces. The
/// other end of the pair is in the network `home`.
///
/// `home` is not given as the supervisor's process id: for the kernel a process is in the network of its first thread,
/// and that thread of the supervisor temporarily enters replicas' networks to open sockets
/// ([`crate::namespace::Namespace::within`]).
pub fn settle(network: &PodNetwork, tools: &Tools, home: BorrowedFd<'_>) -> Result<(), NetworkError> {
    let PodNetwork { address, link, .. } = network;
    tools.ip_with(home, |home| {
        format!(
            "link set lo up\nlink add eth0 type veth peer name {link} netns {home}\naddr add {address}/{OWN_PREFIX} dev eth0\n\
             link set eth0 up\nroute add {BRIDGE_ADDRESS} dev eth0 src {address}\nroute add default via {BRIDGE_ADDRESS}\n"
        )
    })?;
    if let Some(capture) = &network.capture {
        tools.ip(&(rules::sidecar_routes(*address, network.egress) + &capture.routes(Family::V4)))?;
        tools.nft(&capture.rulesets().iter().map(nftables::render).collect::<String>())?;
    }
    open_to_programs()?;
    nix::unistd::sethostname(&network.host_name).map_err(|error| file("the host name", error.into()))?;
    mount_resolver(network)
}

/// Allows programs without privileges to use ports below 1024 and `ping`, as container runtimes do.
fn open_to_programs() -> Result<(), NetworkError> {
    let set = |name: &str, value: &str| {
        let path = Path::new("/proc/sys/net/ipv4").join(name);
        fs::write(&path, value).map_err(|error| file(&path.display().to_string(), error))
    };
    set("ip_unprivileged_port_start", "0")?;
    // Groups that a user namespace does not have are refused; a failure here must not fail the replica.
    set("ping_group_range", "0 2147483647").or_else(|_| set("ping_group_range", "0 0")).or(Ok(()))
}

/// Attaches a replica's veth to the bridge; runs in the mesh's own namespace.
pub fn attach_to_bridge(network: &PodNetwork, tools: &Tools) -> Result<(), NetworkError> {
    let link = &network.link;
    let judged = match (network.egress.plain, &network.capture) {
        (true, _) => Some(rules::PLAIN_SET),
        (false, Some(_)) => Some(rules::CAPTURED_SET),
        // A gateway's proxy is alone.
        (false, None) => None,
    };
    judged.map_or(Ok(()), |set| rules::add(network.address, set, tools))?;
    tools.ip(&format!("link set {link} master {BRIDGE}\nlink set {link} up\n"))?;
    Ok(())
}

/// Waits until the bridge forwards packets of an attached veth, or gives up after [`CARRIER_TIMEOUT`].
///
/// The kernel activates a bridge port in the background, and an ARP request that is lost meanwhile is repeated only
/// after a second. Runs in the mesh's own namespace.
pub async fn wait_carrier(network: &PodNetwork) {
    let opened = async {
        while !(is_running(BRIDGE) && is_running(&network.link)) {
            tokio::time::sleep(CARRIER_PERIOD).await;
        }
    };
    if tokio::time::timeout(CARRIER_TIMEOUT, opened).await.is_err() {
        tracing::warn!(link = %network.link, "the bridge did not report in time that this link is up; continuing");
    }
}

/// `IFF_RUNNING` of an interface in this thread's network namespace.
fn is_running(link: &str) -> bool {
    let Ok(mut entries) = getifaddrs() else { return false };
    entries.any(|entry| entry.interface_name == link && entry.flags.contains(InterfaceFlags::IFF_RUNNING))
}

/// Puts pod-like name resolution over the machine's.
fn mount_resolver(network: &PodNetwork) -> Result<(), NetworkError> {
    let host = format!("{} {}\n", network.address, network.host_name);
    for (source, target) in write_resolver(&network.folder, NAME_SERVER, &network.search, &host)? {
        mount(Some(&source), &target, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|error| file(&format!("{} (it must exist on this machine)", target.display()), error.into()))?;
    }
    Ok(())
}

/// Writes files for pod-like name resolution: `resolv.conf`, `hosts`, and a `hosts:` line that asks only those two. Returns each
/// with the machine's file that it is to be mounted over.
pub(crate) fn write_resolver(
    folder: &Path,
    name_server: Ipv4Addr,
    search: &str,
    host: &str,
) -> Result<Vec<(PathBuf, PathBuf)>, NetworkError> {
    fs::create_dir_all(folder).map_err(|error| file(&folder.display().to_string(), error))?;
    // Below the cluster's domains those of the machine, as in a pod (`dnsPolicy: ClusterFirst`).
    let machine = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let search = [search, search_of(&machine)].join(" ");
    let resolv = format!("nameserver {name_server}\nsearch {}\noptions ndots:5\n", search.trim_end());
    let hosts = format!("127.0.0.1 localhost\n{host}");
    // nss-resolve and mdns would ask the machine's own resolver over a Unix socket, past the capture.
    let switch = fs::read_to_string("/etc/nsswitch.conf").ok().map(|switch| ("nsswitch.conf", files_and_dns(&switch)));
    let files = [("resolv.conf", resolv), ("hosts", hosts)].into_iter().chain(switch);
    files.map(|(name, content)| for_etc(folder, name, &content)).collect()
}

/// The search list of a resolv.conf: its last `search` or `domain` counts.
fn search_of(resolv_conf: &str) -> &str {
    let mut from_last = resolv_conf.lines().rev().filter_map(|line| line.split_once([' ', '\t']));
    let last = from_last.find(|(word, _)| ["search", "domain"].contains(word));
    last.map_or("", |(_, list)| list.trim()).trim_end_matches('.')
}

fn files_and_dns(switch: &str) -> String {
    let keep = switch.lines().filter(|line| !line.trim_start().starts_with("hosts:"));
    keep.chain(["hosts: files dns"]).map(|line| format!("{line}\n")).collect()
}

fn for_etc(folder: &Path, name: &str, content: &str) -> Result<(PathBuf, PathBuf), NetworkError> {
    let source = folder.join(name);
    fs::write(&source, content)
        .and_then(|()| fs::set_permissions(&source, fs::Permissions::from_mode(0o644)))
        .map_err(|error| file(&source.display().to_string(), error))?;
    Ok((source, Path::new("/etc").join(name)))
}

fn file(what: &str, source: io::Error) -> NetworkError {
    NetworkError::File { what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::namespace::Namespace;

    #[test]
    fn addresses_stay_inside_the_pod_network_and_never_repeat() {
        let all: Vec<Ipv4Addr> = (0..MAX_PODS).map_while(pod_address).collect();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(all.len(), distinct.len());
        assert_eq!(all.len(), usize::try_from(MAX_PODS).unwrap_or(0));
        assert_eq!(all.first(), Some(&Ipv4Addr::new(10, 244, 1, 1)));
        assert_eq!(all.get(250), Some(&Ipv4Addr::new(10, 244, 2, 1)));
        assert_eq!(pod_address(MAX_PODS), None);
    }

    /// Only root may make namespaces without a process of its own for them.
    #[test]
    fn the_cable_ends_in_the_network_it_is_laid_from() -> Result<(), Box<dyn std::error::Error>> {
        if !crate::preflight::is_root() {
            return Ok(());
        }
        let folder = tempfile::tempdir()?;
        let network = PodNetwork {
            address: Ipv4Addr::new(10, 244, 1, 1),
            host_name: "web".to_owned(),
            search: String::new(),
            capture: None,
            folder: folder.path().to_path_buf(),
            link: "ek-test".to_owned(),
            egress: EgressAccess { plain: false, open: false },
        };
        // Neither the first thread of this process, nor process 1, is in this network.
        let laid = std::thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(|error| error.to_string())?;
            let tools = Tools::find().map_err(|error| error.to_string())?;
            let (inner, inner_tools) = (network.clone(), tools.clone());
            set_up_bridge(&tools).map_err(|error| error.to_string())?;
            let home = fs::File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())?;
            let replica = Namespace::create(move || {
                mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                    .map_err(io::Error::from)?;
                settle(&inner, &inner_tools, home.as_fd())
            });
            let _replica = replica.map_err(|error| error.to_string())?;
            attach_to_bridge(&network, &tools).map_err(|error| error.to_string())
        });
        assert_eq!(laid.join().ok(), Some(Ok(())));
        Ok(())
    }

    #[test]
    fn the_last_search_list_of_the_machine_counts() {
        let check = |text: &str, expected: &str| assert_eq!(search_of(text), expected, "{text}");
        check("", "");
        check("nameserver 127.0.0.53\noptions edns0\nsearch lan corp.example\n", "lan corp.example");
        check("domain a.b\nsearch\tc.d  \n# search x", "c.d");
        check("search .\n", "");
    }

    #[test]
    fn only_the_hosts_line_of_nsswitch_changes() {
        let check = |input: &str, expected: &str| assert_eq!(files_and_dns(input), expected);
        check(
            "passwd: files systemd\nhosts: files mdns4_minimal [NOTFOUND=return] resolve dns\n",
            "passwd: files systemd\nhosts: files dns\n",
        );
        check("# empty\n", "# empty\nhosts: files dns\n");
    }
}
