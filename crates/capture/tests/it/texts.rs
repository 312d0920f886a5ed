//! The rules as text.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::istio::InterceptionMode;
use evenkeel_base::cidr::{self, IpNet};
use evenkeel_capture::{Capture, DnsCapture, Family, PROXY_DSCP, ProxyIdentity, iptables, nftables};
use evenkeel_testkit::golden;

fn net(text: &str) -> IpNet {
    cidr::parse(text).expect("a range")
}

fn names<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

/// What annotations say, by name.
fn rules() -> [(&'static str, CaptureRules); 4] {
    let all = CaptureRules::default();
    let only = CaptureRules {
        inbound_ports: Some(vec![80, 8080]),
        except_inbound_ports: vec![22],
        outbound_ranges: Some(vec![net("10.96.0.0/12"), net("192.0.2.1")]),
        except_outbound_ranges: vec![net("10.97.0.0/16"), net("fd00::/8")],
        outbound_ports: vec![443, 8443],
        except_outbound_ports: vec![3306, 5432],
        except_interfaces: names(["eth1", "br-0"]),
    };
    let except = CaptureRules {
        except_inbound_ports: vec![22, 9000],
        except_outbound_ranges: vec![net("10.1.0.0/16")],
        ..all.clone()
    };
    let none = CaptureRules { inbound_ports: Some(vec![]), outbound_ranges: Some(vec![]), ..all.clone() };
    [("all", all), ("only", only), ("except", except), ("none", none)]
}

const MODES: [(&str, InterceptionMode); 2] =
    [("redirect", InterceptionMode::Redirect), ("tproxy", InterceptionMode::Tproxy)];

fn golden(name: &str, text: &str) {
    golden::check(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name), text);
}

/// `evenkeel up` loads these texts.
#[test]
fn nftables_has_the_rules_of_one_machine() {
    for (mode_name, mode) in MODES {
        for (name, rules) in rules() {
            for (suffix, dns) in [("", DnsCapture::All), ("-without-dns", DnsCapture::Off)] {
                let capture = Capture {
                    mode,
                    rules: rules.clone(),
                    proxy: ProxyIdentity::Mark,
                    dns,
                    direct: vec![Ipv4Addr::new(10, 244, 0, 1).into()],
                    proxy_dscp: Some(PROXY_DSCP),
                    ..Capture::default()
                };
                let texts: Vec<String> = capture.rulesets().iter().map(nftables::render).collect();
                golden(&format!("{mode_name}-{name}{suffix}.nft"), &texts.concat());
                let expected = if mode == InterceptionMode::Tproxy { Some("tproxy.routes") } else { None };
                let routes = capture.routes(Family::V4);
                assert_eq!(expected.is_some(), !routes.is_empty());
                expected.into_iter().for_each(|name| golden(name, &routes));
            }
        }
    }
}

/// A Pod of a cluster, whose proxy runs as a user of its own.
#[test]
fn a_pod_has_the_same_rules_in_either_language() {
    for (mode_name, mode) in MODES {
        for (name, rules) in rules().into_iter().filter(|(name, _)| ["all", "only"].contains(name)) {
            let virtual_interfaces = if name == "only" { names(["vnet0"]) } else { Vec::new() };
            let servers = ["10.96.0.10", "fd00::a"].map(|address| address.parse().expect("an address"));
            let dns = if name == "only" { DnsCapture::Servers(servers.to_vec()) } else { DnsCapture::All };
            let capture = Capture { mode, rules, virtual_interfaces, dns, ipv6: true, ..Capture::default() };
            for (ruleset, family) in capture.rulesets().iter().zip(["", "6"]) {
                golden(&format!("pod-{mode_name}-{name}.nft{family}"), &nftables::render(ruleset));
                golden(&format!("pod-{mode_name}-{name}.iptables{family}"), &iptables::render(ruleset));
            }
        }
    }
}

/// The same settings give the decisions of `istio-iptables`, in its order: what is final, what the proxy sends, what stays in the Pod,
/// what is excluded, then ports, then ranges. Where Istio repeats a condition for each user, one rule without it stands here.
#[test]
fn iptables_has_istios_decisions_in_istios_order() {
    let check = |arguments: &str, chain: &str, expected: &[&str]| {
        let capture = Capture::from_arguments(arguments.split(' '), &[Ipv4Addr::new(10, 96, 0, 10).into()]);
        let text = capture.expect("arguments").rulesets().iter().map(iptables::render).collect::<String>();
        let prefix = format!("-A {chain} ");
        let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&*prefix)).collect();
        assert_eq!(lines, expected, "{arguments}\n{text}");
    };
    const ALL: &str = "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x  -b * -d 15090,15021,15020";
    let own = "-p tcp -m multiport --dports 15008,15000,15020,15021,15090 -j RETURN";
    check(
        ALL,
        "ISTIO_INBOUND",
        &[own, "-p tcp -m multiport --dports 15090,15021,15020 -j RETURN", "-p tcp -j REDIRECT --to-ports 15006"],
    );
    let to_itself = |owner: &str| {
        format!("-p tcp -o lo ! -d 127.0.0.1/32 ! --dport 15008 -m owner {owner} 1337 -j REDIRECT --to-ports 15006")
    };
    let [user, group] = ["--uid-owner", "--gid-owner"].map(to_itself);
    let own_calls = [
        "-o lo -s 127.0.0.6/32 -j RETURN",
        &user,
        &group,
        "-m owner --uid-owner 1337 -j RETURN",
        "-m owner --gid-owner 1337 -j RETURN",
    ];
    let local = ["-o lo -j RETURN", "-d 127.0.0.1/32 -j RETURN"];
    let all = ["-p tcp -j REDIRECT --to-ports 15001"];
    check(ALL, "ISTIO_OUTPUT", &[&own_calls[..], &local, &all].concat());
    let some = ["-p tcp -d 10.1.0.0/16 -j RETURN", "-p tcp --dport 443 -j REDIRECT --to-ports 15001"];
    let ranges = ["-p tcp -d 10.0.0.0/8 -j REDIRECT --to-ports 15001"];
    check(
        "-u 1337 -i 10.0.0.0/8 -x 10.1.0.0/16 -q 443 -b ",
        "ISTIO_OUTPUT",
        &[&own_calls[..], &local, &some, &ranges].concat(),
    );
    check(
        "-u 1337 -b 80,81",
        "ISTIO_INBOUND",
        &[own, "-p tcp -m multiport --dports 80,81 -j REDIRECT --to-ports 15006"],
    );
    check(
        "-u 1337 -i * -k vnet0 -c eth1",
        "ISTIO_INBOUND",
        &["-i eth1 -j RETURN", "-p tcp -i vnet0 -j REDIRECT --to-ports 15001", "-i vnet0 -j RETURN", own],
    );
    check(
        "-u 1337 -m TPROXY -b *",
        "ISTIO_INBOUND",
        &[
            "-p tcp -m mark --mark 1337 -j CONNMARK --set-mark 1337",
            "-p tcp -m mark --mark 1337 -j RETURN",
            "-i lo -s 127.0.0.6/32 -j RETURN",
            "-i lo -m mark ! --mark 1338 -j RETURN",
            "-d 127.0.0.0/8 -j RETURN",
            own,
            "-p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j MARK --set-mark 1337",
            "-p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-p tcp -j TPROXY --on-port 15006 --tproxy-mark 1337/0xffffffff",
        ],
    );
    check(
        "-u 1337 -g 1338 --redirect-dns",
        "ISTIO_OUTPUT_DNS",
        &[
            "-p udp --dport 53 -m owner --uid-owner 1337 -j CT --zone 1",
            "-p udp --sport 15053 -m owner --uid-owner 1337 -j CT --zone 2",
            "-p udp --dport 53 -m owner --gid-owner 1338 -j CT --zone 1",
            "-p udp --sport 15053 -m owner --gid-owner 1338 -j CT --zone 2",
            "-p udp -d 10.96.0.10/32 --dport 53 -j CT --zone 2",
        ],
    );
    check("-u 1337 -b * -m NONE", "ISTIO_INBOUND", &[]);
    let many: Vec<String> = (1..=16).map(|port| port.to_string()).collect();
    check(
        &format!("-u 1337 -b {}", many.join(",")),
        "ISTIO_INBOUND",
        &[
            own,
            "-p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15 -j REDIRECT --to-ports 15006",
            "-p tcp --dport 16 -j REDIRECT --to-ports 15006",
        ],
    );
}

#[test]
fn chains_that_are_not_loaded_are_named() {
    let capture = Capture { mode: InterceptionMode::Tproxy, dns: DnsCapture::All, ..Capture::default() };
    for ruleset in capture.rulesets() {
        let (nft, iptables) = (nftables::render(&ruleset), iptables::render(&ruleset));
        assert_eq!((nftables::missing(&ruleset, &nft), iptables::missing(&ruleset, &iptables)), (vec![], vec![]));
        assert_eq!(nftables::missing(&ruleset, "").len(), ruleset.chains.len());
        assert_eq!(iptables::missing(&ruleset, "").len(), ruleset.chains.len());
        // A chain that somebody has emptied, and one that nothing enters.
        let start = nft.find("chain outbound {").expect("the chain");
        let (before, after) = nft.split_at(start);
        let emptied =
            format!("{before}chain outbound {{\n    type nat hook output priority -100; policy accept;\n  }}\n{after}");
        assert_eq!(nftables::missing(&ruleset, &emptied), ["outbound"]);
        let detached = iptables.replace("-A OUTPUT -j ISTIO_OUTPUT\n", "");
        assert_eq!(iptables::missing(&ruleset, &detached), ["ISTIO_OUTPUT"]);
    }
}
