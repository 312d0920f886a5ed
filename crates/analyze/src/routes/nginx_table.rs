//! The annotations of ingress-nginx, and what becomes of each.

/// What begins their names.
pub(super) const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// What becomes of an annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// It is part of the routes.
    Written,
    /// Nothing is to do: it is so here, or of no matter.
    Needless(&'static str),
    /// It is left out. Requests take the same way; what replaces it.
    Dropped(&'static str),
    /// It protects something or decides where requests go, so the Ingress remains; what replaces it.
    Refused(&'static str),
}

use Treatment::{Dropped, Needless, Refused, Written};

/// What becomes of the annotation of this name, without its prefix; `None`: it is not known.
pub(super) fn treatment(name: &str) -> Option<Treatment> {
    TABLE.iter().find(|row| row.0.split(' ').any(|own| own == name)).map(|row| row.1)
}

const AUTH: &str = "an AuthorizationPolicy with `action: CUSTOM` for the Gateway, and an extension provider";
const RATE: &str = "nothing here: rate limits are not supported";
const SNIPPET: &str = "filters of the HTTPRoute, as far as they can say it";
const BUFFER: &str = "nothing: bodies are forwarded as they come";
const BODY: &str = "a limit of the program: here is none";
const TIMES: &str = "`timeouts.request` of the rule; nginx counts the time between two reads";
const RETRY: &str = "`retry` of the rule";
const BACKEND_TLS: &str = "a BackendTLSPolicy for the Service";
const CLIENT_TLS: &str = "`spec.tls.frontend` of the Gateway";
const HASH: &str = "a DestinationRule with `loadBalancer.consistentHash`";
const TRACES: &str = "a Telemetry for the Gateway";
const CIPHERS: &str = "`meshConfig.tlsDefaults`";
const ERRORS: &str = "responses of the program itself";
const COOKIES: &str = "the program's own cookies";

/// Names, separated by spaces, and what becomes of them.
const TABLE: &[(&str, Treatment)] = &[
    ("rewrite-target use-regex app-root", Written),
    ("ssl-redirect permanent-redirect permanent-redirect-code temporal-redirect temporal-redirect-code", Written),
    ("canary canary-weight canary-weight-total canary-by-header canary-by-header-value", Written),
    ("canary-by-header-pattern canary-by-cookie", Written),
    ("enable-cors cors-allow-origin cors-allow-methods cors-allow-headers cors-expose-headers", Written),
    ("cors-allow-credentials cors-max-age", Written),
    ("upstream-vhost x-forwarded-prefix server-alias backend-protocol", Written),
    ("affinity session-cookie-name session-cookie-expires session-cookie-max-age affinity-mode", Written),
    ("service-upstream", Needless("proxies choose endpoints themselves")),
    ("proxy-http-version proxy-request-buffering proxy-buffering proxy-buffers-number", Needless(BUFFER)),
    ("proxy-buffer-size proxy-busy-buffers-size proxy-max-temp-file-size client-body-buffer-size", Needless(BUFFER)),
    ("connection-proxy-header http2-push-preload preserve-trailing-slash", Needless("it is of no matter here")),
    ("enable-access-log enable-rewrite-log", Dropped(TRACES)),
    ("enable-opentelemetry opentelemetry-trust-incoming-span opentelemetry-operation-name", Dropped(TRACES)),
    ("enable-opentracing opentracing-trust-incoming-span", Dropped(TRACES)),
    ("proxy-body-size", Dropped(BODY)),
    ("proxy-connect-timeout proxy-send-timeout proxy-read-timeout", Dropped(TIMES)),
    ("proxy-next-upstream proxy-next-upstream-timeout proxy-next-upstream-tries", Dropped(RETRY)),
    ("load-balance", Dropped("a DestinationRule with `loadBalancer`")),
    ("upstream-hash-by upstream-hash-by-subset upstream-hash-by-subset-size", Dropped(HASH)),
    ("session-cookie-path session-cookie-domain session-cookie-secure session-cookie-samesite", Dropped(COOKIES)),
    ("session-cookie-change-on-failure session-cookie-conditional-samesite-none", Dropped(COOKIES)),
    ("affinity-canary-behavior", Dropped(COOKIES)),
    ("proxy-cookie-domain proxy-cookie-path", Dropped(COOKIES)),
    ("custom-http-errors default-backend disable-proxy-intercept-errors", Dropped(ERRORS)),
    ("ssl-ciphers ssl-prefer-server-ciphers", Dropped(CIPHERS)),
    ("mirror-target mirror-request-body mirror-host", Dropped("a filter of the type RequestMirror")),
    ("force-ssl-redirect", Refused("a redirect by the load balancer in front, which ends TLS")),
    ("from-to-www-redirect", Refused("an HTTPRoute for the other host with a RequestRedirect to this one")),
    ("relative-redirects proxy-redirect-from proxy-redirect-to", Refused("redirects of the program itself")),
    ("configuration-snippet server-snippet stream-snippet auth-snippet modsecurity-snippet", Refused(SNIPPET)),
    ("custom-headers", Refused("a filter of the type ResponseHeaderModifier with the headers of the ConfigMap")),
    ("auth-url auth-signin auth-signin-redirect-param auth-method auth-response-headers", Refused(AUTH)),
    ("auth-proxy-set-headers auth-cache-key auth-cache-duration auth-request-redirect", Refused(AUTH)),
    ("auth-keepalive auth-keepalive-share-vars auth-keepalive-requests auth-keepalive-timeout", Refused(AUTH)),
    ("auth-always-set-cookie enable-global-auth satisfy", Refused(AUTH)),
    (
        "auth-type auth-secret auth-secret-type auth-realm",
        Refused("a RequestAuthentication, or an external authorizer"),
    ),
    ("auth-tls-secret auth-tls-verify-client auth-tls-verify-depth auth-tls-error-page", Refused(CLIENT_TLS)),
    ("auth-tls-pass-certificate-to-upstream auth-tls-match-cn", Refused(CLIENT_TLS)),
    (
        "whitelist-source-range allowlist-source-range",
        Refused("an AuthorizationPolicy for the Gateway with `remoteIpBlocks`"),
    ),
    (
        "denylist-source-range",
        Refused("an AuthorizationPolicy for the Gateway with `action: DENY` and `remoteIpBlocks`"),
    ),
    ("limit-rps limit-rpm limit-connections limit-burst-multiplier limit-whitelist limit-allowlist", Refused(RATE)),
    ("limit-rate limit-rate-after global-rate-limit global-rate-limit-window", Refused(RATE)),
    ("global-rate-limit-key global-rate-limit-ignored-cidrs", Refused(RATE)),
    ("enable-modsecurity enable-owasp-core-rules modsecurity-transaction-id", Refused("a firewall of its own")),
    ("enable-influxdb influxdb-measurement influxdb-port influxdb-host influxdb-server-name", Dropped(TRACES)),
    ("ssl-passthrough", Refused("a listener of the protocol TLS with `mode: Passthrough`, and a TLSRoute")),
    ("secure-backends", Refused(BACKEND_TLS)),
    ("proxy-ssl-secret proxy-ssl-ciphers proxy-ssl-name proxy-ssl-protocols proxy-ssl-verify", Refused(BACKEND_TLS)),
    ("proxy-ssl-verify-depth proxy-ssl-server-name", Refused(BACKEND_TLS)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_annotation_has_one_row() {
        let mut names: Vec<&str> = TABLE.iter().flat_map(|row| row.0.split(' ')).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(names.iter().all(|name| treatment(name).is_some()) && treatment("no-such").is_none());
    }
}
