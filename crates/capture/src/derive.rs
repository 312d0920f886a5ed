//! From the settings to the rules.

use evenkeel_api::istio::InterceptionMode;

use crate::ruleset::{Action, Chain, ChainName, Family, Hook, Match, Rule, Ruleset};
use crate::settings::Capture;
use crate::{inbound, outbound, zones};

impl Capture {
    /// The rules for each family of addresses that the workload has; none with `NONE`.
    pub fn rulesets(&self) -> Vec<Ruleset> {
        let families = [(Family::V4, true), (Family::V6, self.ipv6)];
        let captured = families.into_iter().filter(|(_, has)| *has && self.mode != InterceptionMode::None);
        captured.map(|(family, _)| Ruleset { family, chains: self.chains(family) }).collect()
    }

    fn chains(&self, family: Family) -> Vec<Chain> {
        let mut chains = inbound::chains(self, family);
        chains.push(outbound::chain(self, family));
        chains.extend(self.proxy_dscp.map(|dscp| self.origin(dscp)));
        chains.extend(zones::chains(self, family));
        chains
    }

    /// Says in each packet whether the proxy sends it.
    fn origin(&self, dscp: u8) -> Chain {
        let marked = self.is_of_proxy().into_iter().map(|is_of_proxy| Rule {
            comment: None,
            matches: vec![Match::Tcp, is_of_proxy],
            actions: vec![Action::SetDscp(dscp), Action::Return],
        });
        let cleared = Rule::new(vec![Match::Dscp(dscp)], Action::SetDscp(0));
        Chain { name: ChainName::Origin, hook: Hook::MangleOutput, rules: marked.chain([cleared]).collect() }
    }
}
