//! The gRPC services of a port other than the connection's ADS stream, chosen by the path of a call.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{self, BoxFuture, FutureExt as _};
use tonic::Status as GrpcStatus;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

type Request = http::Request<Body>;
type Response = http::Response<Body>;
type Handler = dyn Fn(Request) -> BoxFuture<'static, Response> + Send + Sync;

/// Services by name. A call of any other service is answered with `UNIMPLEMENTED`.
#[derive(Clone, Default)]
pub struct Services(Arc<Vec<(&'static str, Arc<Handler>)>>);

impl Services {
    /// With one more service, as tonic generates them.
    #[must_use]
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: Service<Request, Response = Response, Error = Infallible, Future: Send>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
    {
        let handler = move |request| call(service.clone(), request).boxed();
        Arc::make_mut(&mut self.0).push((S::NAME, Arc::new(handler)));
        self
    }

    /// Calls the service that the path `/SERVICE/METHOD` names.
    pub(super) fn handle(&self, request: Request) -> BoxFuture<'static, Response> {
        let service = service_of(request.uri().path());
        match self.0.iter().find(|(name, _)| Some(*name) == service) {
            Some((_, handler)) => handler(request),
            None => future::ready(GrpcStatus::unimplemented("unknown service").into_http()).boxed(),
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// For a server of tonic's.
impl Service<Request> for Services {
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        self.handle(request).map(Ok).boxed()
    }
}

async fn call<S>(mut service: S, request: Request) -> Response
where
    S: Service<Request, Response = Response, Error = Infallible>,
{
    let Ok(()) = future::poll_fn(|cx| service.poll_ready(cx)).await;
    let Ok(response) = service.call(request).await;
    response
}

/// The service that a path names; `None` if it is not `/SERVICE/METHOD` (gRPC over HTTP/2, "Requests").
fn service_of(path: &str) -> Option<&str> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    (!method.is_empty()).then_some(service)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service that answers with its name.
    #[derive(Clone)]
    struct Hello;

    impl NamedService for Hello {
        const NAME: &'static str = "test.Hello";
    }

    impl Service<Request> for Hello {
        type Response = Response;
        type Error = Infallible;
        type Future = future::Ready<Result<Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request) -> Self::Future {
            future::ready(Ok(http::Response::builder()
                .header("service", Self::NAME)
                .body(Body::empty())
                .expect("valid")))
        }
    }

    #[tokio::test]
    async fn calls_reach_the_service_of_their_name_and_no_other() {
        let services = Services::default().with(Hello);
        for (path, service, status) in [
            ("/test.Hello/Call", Some("test.Hello"), None),
            ("/test.Hell/Call", None, Some("12")),
            ("/test.Hello", None, Some("12")),
        ] {
            let request = http::Request::post(path).body(Body::empty()).expect("valid");
            let response = services.handle(request).await;
            let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
            assert_eq!((header("service"), header("grpc-status")), (service, status), "{path}");
        }
    }

    #[test]
    fn paths_name_services() {
        let check = |path, expected| assert_eq!(service_of(path), expected, "{path}");
        check(
            "/istio.v1.auth.IstioCertificateService/CreateCertificate",
            Some("istio.v1.auth.IstioCertificateService"),
        );
        check("/a/b/c", Some("a"));
        check("//b", Some(""));
        check("/a/", None);
        check("/a", None);
        check("a/b", None);
        check("/", None);
        check("*", None);
        check("", None);
    }
}
