//! What a cell of an experiment runs: which sidecars, with which settings, in front of how many services.

use serde::{Deserialize, Serialize};

/// The proxy that sidecars are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proxy {
    /// Evenkeel's.
    Evenkeel,
    /// A stock Envoy, configured by Evenkeel's control plane.
    Envoy,
}

impl Proxy {
    /// Its name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::Evenkeel => "Evenkeel",
            Self::Envoy => "Envoy",
        }
    }
}

/// Which sides of a call have a sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sidecars {
    /// Neither.
    None,
    /// The caller.
    Client,
    /// The called services.
    Server,
    /// Both.
    Both,
}

impl Sidecars {
    /// Its name in tables.
    pub fn label(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Client => "client",
            Self::Server => "server",
            Self::Both => "both",
        }
    }

    /// Whether the caller has one.
    pub fn at_client(self) -> bool {
        matches!(self, Self::Client | Self::Both)
    }

    /// Whether the called services have one.
    pub fn at_server(self) -> bool {
        matches!(self, Self::Server | Self::Both)
    }
}

/// One namespace of the mesh: a caller, one service or a chain of them, and the settings of their sidecars.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The kind of proxy.
    pub proxy: Proxy,
    /// Where sidecars are.
    pub sidecars: Sidecars,
    /// Workers of each sidecar; 0: as many as there are cores.
    pub workers: u32,
    /// Envoy's exact balance of connections, for both directions. Evenkeel always balances.
    pub exact_balance: bool,
    /// Mutual TLS between sidecars.
    pub mutual_tls: bool,
    /// An access log in each sidecar.
    pub access_log: bool,
    /// Statistics of requests.
    pub telemetry: bool,
    /// An AuthorizationPolicy that requires the caller's identity and the method.
    pub authorization: bool,
    /// The number of services, each of which calls the next.
    pub services: usize,
}

impl Setup {
    /// Sidecars on both sides as the published meshes have them: mutual TLS, access log, statistics.
    pub fn pair(proxy: Proxy, workers: u32) -> Self {
        Self {
            proxy,
            sidecars: Sidecars::Both,
            workers,
            exact_balance: false,
            mutual_tls: true,
            access_log: true,
            telemetry: true,
            authorization: false,
            services: 1,
        }
    }

    /// No sidecar at all.
    pub fn direct() -> Self {
        Self { sidecars: Sidecars::None, mutual_tls: false, ..Self::pair(Proxy::Evenkeel, 1) }
    }

    /// Whether it has a sidecar of this kind.
    pub fn has(&self, proxy: Proxy) -> bool {
        self.sidecars != Sidecars::None && self.proxy == proxy
    }

    /// Its namespace, which no other setup has.
    pub fn namespace(&self) -> String {
        let services = format!("s{}", self.services);
        if self.sidecars == Sidecars::None {
            return format!("direct-{services}");
        }
        let flags = [
            (self.exact_balance, "exact"),
            (self.mutual_tls, "mtls"),
            (self.access_log, "log"),
            (self.telemetry, "stats"),
            (self.authorization, "authz"),
        ];
        let proxy = self.proxy.label().to_ascii_lowercase();
        let mut name = format!("{proxy}-{}-w{}-{services}", self.sidecars.label(), self.workers);
        for (_, flag) in flags.into_iter().filter(|(is_set, _)| *is_set) {
            name.push('-');
            name.push_str(flag);
        }
        name
    }

    /// Whether calls between its sidecars use mutual TLS.
    pub fn is_mutual(&self) -> bool {
        self.mutual_tls && self.sidecars == Sidecars::Both
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_differ_with_every_setting() {
        let pair = || Setup::pair(Proxy::Evenkeel, 2);
        let all = [
            pair(),
            Setup::direct(),
            Setup { proxy: Proxy::Envoy, ..pair() },
            Setup { sidecars: Sidecars::Client, ..pair() },
            Setup { workers: 0, ..pair() },
            Setup { exact_balance: true, ..pair() },
            Setup { mutual_tls: false, ..pair() },
            Setup { access_log: false, ..pair() },
            Setup { telemetry: false, ..pair() },
            Setup { authorization: true, ..pair() },
            Setup { services: 8, ..pair() },
        ];
        let mut names: Vec<String> = all.iter().map(Setup::namespace).collect();
        assert_eq!(names[0], "evenkeel-both-w2-s1-mtls-log-stats");
        assert!(names.iter().all(|name| name.len() <= 63), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }
}
