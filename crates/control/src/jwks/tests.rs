//! Keys are fetched from real servers, survive outages and restarts, and are forgotten with their rule.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;

use evenkeel_testkit::jwt::{Signer, jwks};
use evenkeel_testkit::tls::{TestCa, TlsServer};
use evenkeel_testkit::{Backend, Reply};

use super::outgoing_proxy::OutgoingProxies;
use super::*;

const REFRESH: Duration = Duration::from_secs(20 * 60);

fn source(uri: &str) -> JwksSource {
    JwksSource::Uri(uri.into())
}

fn stored(state: &std::path::Path) -> Arc<StoredObjects> {
    StoredObjects::open(state, FOLDER, super::source()).expect("a store").0
}

async fn get(from: &JwksSource) -> Result<String, String> {
    fetch(&Client::new(&[]), from, Duration::from_secs(5)).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_come_from_their_uri_or_from_where_the_issuer_says() {
    let set = jwks(&[&Signer::ec("a", "P-256")]);
    let (keys, large) = (set.clone(), " ".repeat(evenkeel_jwt::MAX_JWKS_BYTES + 1));
    let backend = Backend::start(move |request| {
        let host = request.header("host").unwrap_or_default().to_owned();
        let discovery = |issuer: &str, uri: &str| {
            Reply::text(format!(r#"{{"issuer":"http://{host}{issuer}","jwks_uri":"http://{host}{uri}"}}"#))
        };
        let redirect = |to: &str| Reply::Fixed(302, vec![("location".to_owned(), to.to_owned())], Vec::new());
        match request.target.as_str() {
            "/keys" => Reply::text(keys.clone()),
            "/good/.well-known/openid-configuration" => discovery("/good", "/keys"),
            "/other/.well-known/openid-configuration" => discovery("/good", "/keys"),
            "/none/.well-known/openid-configuration" => Reply::text("{}"),
            "/nobody/.well-known/openid-configuration" => {
                Reply::text(format!(r#"{{"jwks_uri":"http://{host}/keys"}}"#))
            }
            "/redirect" => redirect("/keys"),
            "/loop" => redirect("/loop"),
            "/file" => redirect("file:///etc/passwd"),
            "/large" => Reply::text(large.clone()),
            "/secret" => Reply::text(r#"{"keys":[{"kty":"oct","k":"AA"}]}"#),
            "/page" => Reply::text("<html>"),
            _ => Reply::Fixed(404, Vec::new(), Vec::new()),
        }
    });
    let at = |path: &str| format!("http://{}{path}", backend.address());
    for (from, expected) in [
        (source(&at("/keys")), Ok(())),
        (source(&at("/redirect")), Ok(())),
        (JwksSource::Issuer(at("/good").into()), Ok(())),
        (JwksSource::Issuer(at("/good/").into()), Err("its `issuer` is another one")),
        (JwksSource::Issuer(at("/other").into()), Err("its `issuer` is another one")),
        (JwksSource::Issuer(at("/none").into()), Err("it has no `issuer`")),
        (JwksSource::Issuer(at("/nobody").into()), Err("it has no `issuer`")),
        (source(&at("/missing")), Err("the server answered 404")),
        (source(&at("/loop")), Err("is not followed")),
        (source(&at("/file")), Err("is not followed")),
        (source(&at("/large")), Err("more than 262144 bytes")),
        (source(&at("/secret")), Err("no usable key; keys[0]: `kty: oct` is a shared secret")),
        (source(&at("/page")), Err("not valid JSON")),
        (source(&format!("http://127.0.0.1:{}/", evenkeel_testkit::free_port())), Err("no connection to 127.0.0.1")),
        (source("ftp://a.test/keys"), Err("no http:// or https:// URL")),
    ] {
        match (get(&from).await, expected) {
            (Ok(text), Ok(())) => assert_eq!(text, set, "{from:?}"),
            (Err(error), Err(part)) if error.contains(part) => {}
            (found, expected) => panic!("{from:?}: {found:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn an_openid_configuration_is_the_issuers_and_keeps_tls() {
    let check = |issuer: &str, document: &str, expected: Result<&str, &str>| {
        let found = discovered(document.as_bytes(), issuer).map_err(|error| error.to_string());
        match expected {
            Ok(uri) => assert_eq!(found.as_deref(), Ok(uri)),
            Err(part) => assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{document}: {found:?}"),
        }
    };
    let secure = "https://a.test";
    check(secure, r#"{"issuer":"https://a.test","jwks_uri":"https://b.test/k"}"#, Ok("https://b.test/k"));
    check(secure, r#"{"issuer":"https://a.test","jwks_uri":"HTTPS://b.test/k"}"#, Ok("HTTPS://b.test/k"));
    check(secure, r#"{"issuer":"https://a.test","jwks_uri":"http://b.test/k"}"#, Err("is not https"));
    check(secure, r#"{"issuer":"https://a.test"}"#, Err("it has no `jwks_uri`"));
    check(secure, r#"{"jwks_uri":"https://a.test/k"}"#, Err("it has no `issuer`"));
    check(secure, r#"{"issuer":"https://b.test","jwks_uri":"https://b.test/k"}"#, Err("another one"));
    check("http://a.test", r#"{"issuer":"http://a.test","jwks_uri":"http://a.test/k"}"#, Ok("http://a.test/k"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_fetched_from_blocked_addresses_and_no_answer_is_repeated() {
    let backend = Backend::start(|request| match request.target.as_str() {
        "/away" => Reply::Fixed(302, vec![("location".to_owned(), "ftp://a.test/hush".to_owned())], Vec::new()),
        "/inside" => Reply::Fixed(302, vec![("location".to_owned(), "http://127.0.0.2/hush".to_owned())], Vec::new()),
        _ => Reply::text(r#"{"hush": 1, "keys": [{"kty": "hush"}]}"#),
    });
    let port = backend.address().port();
    let check = async |url: &str, blocked: &str, expected: &str| {
        let ranges = settings::blocked(|_| Some(blocked.to_owned())).expect("ranges");
        let client = Client::new(&[]).without(ranges).trusting(&[]);
        let fetched = fetch(&client, &source(url), Duration::from_secs(5)).await;
        let error = fetched.expect_err("no keys").to_string();
        assert!(error.contains(expected) && !error.contains("hush"), "{url}, {blocked:?}: {error}");
    };
    let blocked = "from which no keys are fetched (BLOCKED_CIDRS_IN_JWKS_URIS)";
    check(&format!("http://127.0.0.1:{port}/"), "", "no usable key; keys[0]: its `kty` is not supported").await;
    check(&format!("http://127.0.0.1:{port}/"), "127.0.0.0/8", blocked).await;
    check(&format!("http://[::ffff:127.0.0.1]:{port}/"), "127.0.0.0/8", blocked).await;
    check(&format!("http://localhost:{port}/"), "127.0.0.0/8,::1", blocked).await;
    check(&format!("http://127.0.0.1:{port}/inside"), "127.0.0.2", blocked).await;
    check(&format!("http://127.0.0.1:{port}/away"), "", "the redirect to `ftp://a.test` is not followed").await;
}

/// 40 issuers that answered after a minute kept the keys of a new one away for minutes.
#[test]
fn slow_issuers_do_not_keep_others_waiting() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut fetcher = Fetcher::new(stored(folder.path()), Client::new(&[]), REFRESH, Arc::default());
    let start = Instant::now();
    let slow: Vec<JwksSource> = (0..MAX_NEW_FETCHES).map(|number| source(&format!("http://a{number}.test/"))).collect();
    let failed = source("http://failed.test/");
    let mut wanted: BTreeMap<JwksSource, _> = slow.iter().chain([&failed]).map(|from| (from.clone(), None)).collect();
    fetcher.follow(wanted.clone(), start);
    fetcher.end(&failed, Err(FetchError::TooLarge), "root", start);
    for from in &slow {
        assert_eq!(fetcher.has_room(0, start), Ok(()));
        fetcher.begin(from, start);
    }
    assert_eq!(fetcher.has_room(slow.len(), start), Err(Some(start + IMPATIENCE)));
    // After a while the slow ones make room, and the new one comes before the one that has failed.
    wanted.insert(source("http://new.test/"), None);
    let later = start + Duration::from_secs(30);
    fetcher.follow(wanted, later);
    assert_eq!(fetcher.has_room(slow.len(), later), Ok(()));
    assert_eq!(fetcher.next(later).map(|(next, _)| next.uri()).as_deref(), Some("http://new.test/"));
    assert_eq!(fetcher.has_room(MAX_FETCHES, later), Err(None));
}

/// The next refresh of good keys lies far ahead; what has failed is tried again before.
#[test]
fn what_has_failed_is_next_where_nothing_is_due() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut fetcher = Fetcher::new(stored(folder.path()), Client::new(&[]), REFRESH, Arc::default());
    let (good, failed) = (source("http://a.test/"), source("http://failed.test/"));
    let start = Instant::now();
    fetcher.follow([&good, &failed].map(|from| (from.clone(), None)).into(), start);
    fetcher.end(&failed, Err(FetchError::TooLarge), "root", start);
    fetcher.sources.get_mut(&good).expect("it is there").due = start + REFRESH;
    assert_eq!(fetcher.next(start).map(|(next, _)| next), Some(&failed));
}

#[test]
fn names_of_further_sources_do_not_take_the_place_of_known_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut fetcher = Fetcher::new(stored(folder.path()), Client::new(&[]), REFRESH, Arc::default());
    let known = source("http://z.test/");
    fetcher.follow(BTreeMap::from([(known.clone(), None)]), Instant::now());
    let further = (0..MAX_SOURCES).map(|number| source(&format!("http://a{number}.test/")));
    fetcher.follow(further.chain([known.clone()]).map(|from| (from, None)).collect(), Instant::now());
    assert!(fetcher.sources.len() == MAX_SOURCES && fetcher.sources.contains_key(&known));
}

#[test]
fn failures_keep_the_last_good_keys_and_back_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |fetcher: &Fetcher| fetcher.sources.values().map(|progress| progress.due).next().expect("a source");
    let files = || std::fs::read_dir(folder.path().join(FOLDER)).map_or(0, Iterator::count);
    let source = source("http://a.test/keys");
    let new = || Fetcher::new(stored(folder.path()), Client::new(&[]), REFRESH, Arc::default());
    let mut fetcher = new();
    let start = Instant::now();
    let wanted = || BTreeMap::from([(source.clone(), None)]);
    fetcher.follow(wanted(), start);
    fetcher.end(&source, Ok("{}".to_owned()), "root", start);
    let is_jittered = |due: Instant| (start + REFRESH * 9 / 10..=start + REFRESH).contains(&due);
    assert!(files() == 1 && is_jittered(at(&fetcher)), "{:?}", at(&fetcher) - start);
    for pause in [1, 2, 4, 8] {
        fetcher.end(&source, Err(FetchError::TooLarge), "root", start);
        assert_eq!((files(), at(&fetcher)), (1, start + Duration::from_secs(pause)));
    }
    (0..40).for_each(|_| fetcher.end(&source, Err(FetchError::TooLarge), "root", start));
    assert_eq!((files(), at(&fetcher)), (1, start + MAX_BACK_OFF));
    // Another process finds the keys, and asks for newer ones at once.
    let mut again = new();
    again.follow(wanted(), start);
    assert_eq!((files(), at(&again)), (1, start));
    let file =
        std::fs::read_dir(folder.path().join(FOLDER)).expect("a folder").flatten().next().expect("a file").path();
    let text = std::fs::read_to_string(file).expect("a file");
    assert!(text.contains(&source.config_map()) && text.contains("http://a.test/keys"), "{text}");
    // Nobody names them any more.
    again.follow(BTreeMap::new(), start);
    assert_eq!((files(), again.sources.len()), (1, 0));
    again.follow(BTreeMap::new(), start + KEEP_IDLE);
    assert_eq!(files(), 0);
}

/// A set with the same keys in another order is not written, so nothing is sent to proxies. Each successful fetch renews the
/// age.
#[test]
fn only_other_keys_are_written_and_keys_of_long_ago_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = source("http://a.test/keys");
    let mut fetcher = Fetcher::new(stored(folder.path()), Client::new(&[]), REFRESH, Arc::default());
    fetcher.follow(BTreeMap::from([(source.clone(), None)]), Instant::now());
    let path = folder.path().join(FOLDER).join(file_name(&source));
    let (a, b) = (Signer::ec("a", "P-256"), Signer::ec("b", "P-256"));
    let both = jwks(&[&a, &b]);
    let mut ends = |outcome: Fetched| {
        fetcher.end(&source, outcome, "root", Instant::now());
        std::fs::read_to_string(&path).ok()
    };
    let first = ends(Ok(both)).expect("a file");
    assert_eq!(ends(Ok(jwks(&[&b, &a]))).as_ref(), Some(&first));
    let second = ends(Ok(jwks(&[&b]))).expect("a file");
    assert_ne!(first, second);
    let fetched = |ago: Duration| {
        let file = std::fs::File::options().write(true).open(&path).expect("the file");
        file.set_modified(SystemTime::now() - ago).expect("a time");
    };
    fetched(MAX_AGE - Duration::from_secs(60));
    assert_eq!(ends(Err(FetchError::TooLarge)).as_ref(), Some(&second));
    assert_eq!(ends(Ok(jwks(&[&b]))).as_ref(), Some(&second));
    assert!(std::fs::metadata(&path).expect("the file").modified().expect("a time").elapsed().expect("past") < REFRESH);
    fetched(MAX_AGE + Duration::from_secs(60));
    assert_eq!(ends(Err(FetchError::TooLarge)), None);
}

#[test]
fn other_roots_try_again_what_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let [failed, good] = ["http://a.test/", "http://b.test/"].map(source);
    let mut fetcher = Fetcher::new(stored(folder.path()), Client::new(&[]), REFRESH, Arc::default());
    let start = Instant::now();
    fetcher.follow(BTreeMap::from([(failed.clone(), None), (good.clone(), None)]), start);
    fetcher.end(&failed, Err(FetchError::TooLarge), "root", start);
    fetcher.end(&good, Ok("{}".to_owned()), "root", start);
    fetcher.trust(Client::new(&[]), start);
    assert_eq!(fetcher.sources[&failed].due, start);
    assert!(fetcher.sources[&good].due > start + REFRESH / 2);
    // A fetch that began before the new roots does not count.
    fetcher.begin(&failed, start);
    fetcher.trust(Client::new(&[]), start);
    fetcher.end(&failed, Err(FetchError::TooLarge), "root", start);
    assert_eq!(fetcher.sources[&failed].due, start);
}

/// Serves the keys to clients that trust the authority; returns the port.
fn https(authority: &TestCa, names: &[&str], set: &str) -> u16 {
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{set}", set.len()).into_bytes();
    TlsServer::new(&authority.for_dns(names)).answer_with(move || answer.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_needs_a_certificate_that_is_trusted() {
    let authority = TestCa::new();
    let set = jwks(&[&Signer::ec("a", "P-256")]);
    let serve = |names: &[&str]| format!("https://localhost:{}/keys", https(&authority, names, &set));
    let (own, foreign) = (serve(&["localhost"]), serve(&["other.test"]));
    let trusting = Client::new(&[authority.root_pem()]);
    let stranger = Client::new(&[]);
    assert_eq!(trusting.get(&own).await.expect("an answer"), set.as_bytes());
    for (client, url) in [(&stranger, &own), (&trusting, &foreign), (&stranger, &foreign)] {
        let error = client.get(url).await.expect_err("no trust").to_string();
        assert!(error.contains("certificate"), "{error}");
    }
}

/// Starts a proxy that connects to this port, whatever host is requested, and keeps the heads that it gets. It requires a
/// password.
fn proxy(to: u16) -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let heads: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&heads);
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if client.read_exact(&mut byte).is_err() {
                    break;
                }
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let is_known = head.contains("proxy-authorization: Basic dTpw\r\n");
            kept.lock().expect("heads").push(head);
            if !is_known {
                let _ = client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n");
                continue;
            }
            let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
            let _ = client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n");
            let (mut from, mut back) = (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            std::thread::spawn(move || std::io::copy(&mut from, &mut back));
            std::thread::spawn(move || std::io::copy(&mut server, &mut client));
        }
    });
    (port, heads)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_come_through_the_proxy_that_the_environment_names() {
    let authority = TestCa::new();
    let set = jwks(&[&Signer::ec("a", "P-256")]);
    let (port, heads) = proxy(https(&authority, &["issuer.test"], &set));
    let plain = Backend::start({
        let set = set.clone();
        move |request| match request.target.as_str() {
            "http://issuer.test/keys" => Reply::text(set.clone()),
            _ => Reply::Fixed(404, Vec::new(), Vec::new()),
        }
    });
    let client = |https_proxy: String, no_proxy: &str| {
        let http_proxy = plain.address().to_string();
        let proxies = OutgoingProxies::from_env(|name| match name {
            "HTTPS_PROXY" => Some(https_proxy.clone()),
            "HTTP_PROXY" => Some(http_proxy.clone()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        });
        Client::new(&[authority.root_pem()]).through(Arc::new(proxies.expect("an environment")))
    };
    let through = client(format!("http://u:p@127.0.0.1:{port}"), "");
    for url in ["https://issuer.test/keys", "http://issuer.test/keys"] {
        assert_eq!(through.get(url).await.expect("an answer"), set.as_bytes(), "{url}");
    }
    // The proxy learns the host, and nothing of the request.
    let head = heads.lock().expect("heads").join("\n");
    assert!(head.starts_with("CONNECT issuer.test:443 HTTP/1.1\r\n") && !head.contains("/keys"), "{head}");
    // It cannot stand in for the issuer, and its errors are reported without its password.
    for (client, url, part) in [
        (&through, "https://other.test/keys", "certificate"),
        (
            &client(format!("http://u:secret@127.0.0.1:{port}"), ""),
            "https://issuer.test/keys",
            "does not connect to issuer.test:443: it answered 407",
        ),
        (
            &client(format!("http://u:secret@127.0.0.1:{}", evenkeel_testkit::free_port()), ""),
            "https://issuer.test/keys",
            "cannot be reached",
        ),
        (
            &client(format!("http://u:p@127.0.0.1:{port}"), "issuer.test"),
            "https://issuer.test/keys",
            "no connection to issuer.test:443",
        ),
    ] {
        let error = client.get(url).await.expect_err(url).to_string();
        assert!(error.contains(part) && !error.contains("secret"), "{error}");
    }
    // A client for other roots uses the same proxies.
    assert!(
        through
            .trusting(&[])
            .get("https://issuer.test/keys")
            .await
            .expect_err("no trust")
            .to_string()
            .contains("certificate")
    );
}
