//! Options of listening sockets, seen from clients.

use std::net::{SocketAddr, TcpStream};

use evenkeel_proxy::{RunError, run_until};
use evenkeel_testkit::{eventually, free_port};
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use socket2::SockRef;
use tokio::sync::oneshot;

use crate::harness::{
    ControlPlane, Proxy, answering, dynamic_bootstrap, get, http_listener_at, resource, set, settings, static_bootstrap,
};

fn bootstrap(address: SocketAddr, fields: &str) -> String {
    static_bootstrap(&http_listener_at(address, "web", &answering("hello"), fields), &[])
}

fn start(bootstrap: &str) -> Proxy {
    let proxy = Proxy::start(bootstrap);
    proxy.wait_live();
    proxy
}

/// The largest segment that a listener with these fields lets clients send, in bytes.
fn largest_segment(fields: &str) -> u32 {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let proxy = start(&bootstrap(address, fields));
    assert_eq!(get(address, "/").text(), "hello", "{fields}");
    let size = segment_to(address);
    proxy.stop().expect("ends well");
    size
}

fn segment_to(address: SocketAddr) -> u32 {
    let client = TcpStream::connect(address).expect("the listener accepts");
    SockRef::from(&client).tcp_mss().expect("a connected socket has it")
}

#[test]
fn options_are_set_in_every_state() {
    // TCP_MAXSEG, by number and by bytes of a little-endian machine.
    let values = if cfg!(target_endian = "little") {
        &["int_value: 700", "buf_value: vAIAAA=="][..]
    } else {
        &["int_value: 700"]
    };
    assert!(largest_segment("") > 700);
    for state in ["STATE_PREBIND", "STATE_BOUND", "STATE_LISTENING"] {
        for value in values {
            let size = largest_segment(&format!("socket_options: [{{level: 6, name: 2, {value}, state: {state}}}]"));
            assert!(size <= 700, "{state} {value}: {size}");
        }
    }
}

#[test]
fn an_option_that_cannot_be_set_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_stop, stopped) = oneshot::channel();
    let text = bootstrap(([127, 0, 0, 1], 0).into(), "socket_options: [{level: 6, name: 9999, int_value: 1}]");
    let error = run_until(settings(&text, &folder, None), stopped).expect_err("there is no such option");
    let RunError::Listeners(reasons) = &error else { panic!("{error:?}") };
    assert!(reasons[0].contains("setsockopt(level 6, name 9999): Protocol not available"), "{reasons:?}");
}

#[test]
fn a_free_bind_needs_no_interface_with_the_address() {
    // An address of documentation (RFC 5737), which no machine has.
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 0));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_stop, stopped) = oneshot::channel();
    let error = run_until(settings(&bootstrap(elsewhere, ""), &folder, None), stopped).expect_err("not its address");
    assert!(error.to_string().contains("Cannot assign requested address"), "{error}");
    let proxy = start(&bootstrap(elsewhere, "freebind: true"));
    assert_eq!(proxy.listener("web").ip(), elsewhere.ip());
    proxy.stop().expect("ends well");
}

#[test]
fn a_changed_option_is_set_on_open_sockets() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listener = |size: u32| {
        let fields = format!("socket_options: [{{level: 6, name: 2, int_value: {size}}}]");
        resource::<Listener>("web", &http_listener_at(address, "web", &answering("hello"), &fields))
    };
    let mut control_plane = ControlPlane::start(set(vec![(ResourceType::Listener, listener(900))]));
    let proxy = start(&dynamic_bootstrap(control_plane.address, "AGGREGATED_GRPC", ""));
    control_plane.wait_accepted();
    assert!((701..=900).contains(&segment_to(address)));
    control_plane.change(|set| set.insert(ResourceType::Listener, listener(700)));
    control_plane.wait_accepted();
    eventually("the new option is in effect", || (segment_to(address) <= 700).then_some(()));
    proxy.stop().expect("ends well");
}
