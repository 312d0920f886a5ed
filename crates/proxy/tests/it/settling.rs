//! A host whose SETTINGS have not arrived yet gets one request and no more.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use evenkeel_testkit::eventually;
use evenkeel_testkit::wait::PATIENCE;

use crate::harness::{Proxy, get, http_listener, stat, static_bootstrap, static_cluster};

/// One frame (RFC 9113 section 4.1): its type and stream.
fn read_frame(socket: &mut TcpStream) -> std::io::Result<(u8, u32)> {
    let mut header = [0; 9];
    socket.read_exact(&mut header)?;
    let [l0, l1, l2, kind, _, s0, s1, s2, s3] = header;
    socket.read_exact(&mut vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize])?;
    Ok((kind, u32::from_be_bytes([s0, s1, s2, s3])))
}

const HEADERS: u8 = 1;

/// The stream of the next request.
fn next_request(socket: &mut TcpStream) -> u32 {
    loop {
        if let (HEADERS, stream) = read_frame(socket).expect("a frame") {
            return stream;
        }
    }
}

fn answer(socket: &mut TcpStream, stream: u32) {
    // END_STREAM and END_HEADERS, and `:status: 200` from the static table.
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    socket.write_all(&[0, 0, 1, HEADERS, 5, s0, s1, s2, s3, 0x88]).expect("an answer");
}

/// One worker, and a host that is spoken to in HTTP/2.
fn proxy(host: &TcpListener) -> Proxy {
    let http2 = "typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {\"@type\": \
                 type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: \
                 {http2_protocol_options: {}}}}";
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                  /}, route: {cluster: slow}}]}]}";
    let cluster = static_cluster("slow", host.local_addr().expect("bound"), http2);
    Proxy::start_with(&static_bootstrap(&http_listener("settling", routes, ""), &[cluster]), 1)
}

#[test]
fn one_request_alone_goes_to_a_host_that_has_not_said_how_many_it_takes() {
    const CLIENTS: usize = 8;
    let host = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = proxy(&host);
    proxy.wait_live();
    let listener = proxy.listener("settling");
    let clients: Vec<_> = (0..CLIENTS).map(|_| std::thread::spawn(move || get(listener, "/").status)).collect();

    let (mut socket, _) = host.accept().expect("a connection");
    socket.set_read_timeout(Some(PATIENCE)).expect("an option");
    socket.read_exact(&mut [0; 24]).expect("the preface");
    let first = next_request(&mut socket);
    eventually("the others to wait", || {
        (stat(&proxy, "cluster.slow.upstream_rq_pending_active") == [CLIENTS as u64 - 1]).then_some(())
    });
    assert_eq!(stat(&proxy, "cluster.slow.upstream_cx_total"), [1]);
    socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).expect("empty SETTINGS");
    let mut streams = vec![first];
    streams.extend((1..CLIENTS).map(|_| next_request(&mut socket)));
    for stream in streams {
        answer(&mut socket, stream);
    }
    let statuses: Vec<_> = clients.into_iter().map(|client| client.join().expect("no panic")).collect();
    assert_eq!(statuses, [200; CLIENTS]);
}

/// `MAX_CONCURRENT_STREAMS` 0: the connection is of no use, and would be kept beside every one that is made in its place.
#[test]
fn connections_to_a_host_that_takes_no_more_are_not_kept() {
    const REQUESTS: usize = 5;
    let host = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = proxy(&host);
    proxy.wait_live();
    let listener = proxy.listener("settling");
    let sockets: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let client = std::thread::spawn(move || get(listener, "/").status);
            let (mut socket, _) = host.accept().expect("a connection");
            socket.set_read_timeout(Some(PATIENCE)).expect("an option");
            socket.read_exact(&mut [0; 24]).expect("the preface");
            let stream = next_request(&mut socket);
            socket.write_all(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0]).expect("SETTINGS");
            answer(&mut socket, stream);
            assert_eq!(client.join().expect("no panic"), 200);
            socket
        })
        .collect();
    for mut socket in sockets.into_iter().take(REQUESTS - 1) {
        let ended = socket.read_to_end(&mut Vec::new());
        assert!(ended.is_ok(), "it is closed: {ended:?}");
    }
    assert_eq!(stat(&proxy, "cluster.slow.upstream_cx_total"), [REQUESTS as u64]);
    eventually("no more than the last to be there", || {
        (stat(&proxy, "cluster.slow.upstream_cx_active").iter().sum::<u64>() <= 1).then_some(())
    });
}
