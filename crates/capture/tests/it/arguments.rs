//! The command line of Istio's init container.

use std::net::IpAddr;

use evenkeel_api::annotations::CaptureRules;
use evenkeel_api::istio::InterceptionMode;
use evenkeel_capture::{ArgumentError, COMMAND, Capture, DnsCapture, ProxyIdentity};

/// The arguments that Istio's injector writes into a Pod, and a few more.
const INJECTED: &str =
    "-p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x  -b * -d 15090,15021,15020 --log_output_level=default:info";

fn read(line: &str) -> Result<Capture, ArgumentError> {
    let servers: [IpAddr; 2] = ["10.96.0.10", "fd00::a"].map(|address| address.parse().expect("an address"));
    Capture::from_arguments(line.split(' '), &servers)
}

#[test]
fn istios_arguments_are_read() {
    let check = |line: &str, expected: &Capture| assert_eq!(read(line).as_ref(), Ok(expected), "{line}");
    let rules = CaptureRules { except_inbound_ports: vec![15090, 15021, 15020], ..CaptureRules::default() };
    let all = Capture { rules, ..Capture::default() };
    check(INJECTED, &all);
    check(&INJECTED.replace("REDIRECT", "TPROXY"), &Capture { mode: InterceptionMode::Tproxy, ..all.clone() });
    let owner = |users: &[u32], groups: &[u32]| ProxyIdentity::Owner { users: users.to_vec(), groups: groups.to_vec() };
    check(&INJECTED.replace("1337", "3,4"), &Capture { proxy: owner(&[3, 4], &[3, 4]), ..all.clone() });
    check(&format!("{INJECTED} -g 1,2"), &Capture { proxy: owner(&[1337], &[1, 2]), ..all.clone() });
    let servers = ["10.96.0.10", "fd00::a"].map(|address| address.parse().expect("an address")).to_vec();
    check(&format!("{INJECTED} --redirect-dns"), &Capture { dns: DnsCapture::Servers(servers), ..all.clone() });
    check(
        &format!("{INJECTED} --redirect-dns=true --capture-all-dns"),
        &Capture { dns: DnsCapture::All, ..all.clone() },
    );
    check(&format!("{INJECTED} --capture-all-dns"), &all);
    let only = CaptureRules {
        outbound_ports: vec![443],
        except_outbound_ports: vec![3306],
        except_interfaces: vec!["eth1".to_owned()],
        ..all.rules.clone()
    };
    check(
        &format!("{INJECTED} -q 443 -o 3306 -c eth1 --kube-virt-interfaces vnet0,vnet1"),
        &Capture { rules: only, virtual_interfaces: vec!["vnet0".to_owned(), "vnet1".to_owned()], ..all.clone() },
    );
    let nothing =
        CaptureRules { inbound_ports: Some(vec![]), outbound_ranges: Some(vec![]), ..CaptureRules::default() };
    check("-u 1337", &Capture { rules: nothing, ..Capture::default() });
}

#[test]
fn what_is_wrong_is_named() {
    let check = |line: &str, expected: &str| {
        assert_eq!(read(line).map_err(|error| error.to_string()), Err(expected.to_owned()), "{line}");
    };
    check("-p", "-p needs a value");
    check("-p x", "-p: `x` is not a number in range");
    check("-p 70000", "-p: `70000` is not a number in range");
    check("--what 1", "`--what` is not a flag of `istio-iptables`");
    check("-m ROUTE", "-m: `ROUTE` is no mode");
    check("-x *", "-x: `*` is not allowed here");
    check("-i 10.0.0", "-i: `10.0.0` is not a range of addresses");
    check("-c eth0;reboot", "-c: `eth0;reboot` is not the name of a network interface");
    check("-t 7", "-t: the mark is 1337, which proxies set");
}

#[test]
fn arguments_that_are_written_are_read_again() {
    let check = |line: &str| {
        let capture = read(line).expect("it can be read");
        let words = capture.to_arguments();
        assert_eq!(words.first().map(String::as_str), Some(COMMAND));
        let again = Capture::from_arguments(words.iter().skip(1).map(String::as_str), &dns_servers(&capture));
        assert_eq!(again, Ok(capture), "{line}: {words:?}");
    };
    check(INJECTED);
    check("-u 3,4");
    check(&format!("{INJECTED} -g 1,2 -e 15009 --redirect-dns"));
    check(&format!("{INJECTED} -q 443,444 -o 3306 -c eth1,eth2 -k vnet0 --redirect-dns --capture-all-dns"));
    check("-i 10.0.0.0/8,fd00::/8 -x 10.1.0.0/16 -b 80,81 -m TPROXY");
}

fn dns_servers(capture: &Capture) -> Vec<IpAddr> {
    match &capture.dns {
        DnsCapture::Servers(servers) => servers.clone(),
        DnsCapture::Off | DnsCapture::All => Vec::new(),
    }
}
