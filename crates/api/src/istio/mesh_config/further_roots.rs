//! `caCertificates`: roots that vouch for identities beside the mesh's own.

use evenkeel_base::{Spanned, spiffe};

use super::CertificateData;
use crate::decode::Context;

/// Begins a certificate in PEM.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// The source of additional roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FurtherRoots<'a> {
    /// Here they are, PEM.
    Pem(&'a str),
    /// From a SPIFFE bundle endpoint (SPIFFE Federation section 5.2, profile `https_web`).
    BundleUrl(&'a str),
}

/// Why an entry is not used: code, message, help.
type Problem = (&'static str, String, &'static str);

impl CertificateData {
    /// The roots; `None` if the entry is not used, which a finding says.
    pub fn roots(&self) -> Option<FurtherRoots<'_>> {
        self.read().ok()
    }

    fn read(&self) -> Result<FurtherRoots<'_>, Problem> {
        if !self.cert_signers.is_empty() {
            let message = "workloads have no signers here that differ; the entry is not used".to_owned();
            return Err(("unsupported-field", message, "remove `certSigners`: then the roots count for every signer"));
        }
        if let Some(domain) = self.trust_domains.iter().find(|domain| !spiffe::is_trust_domain(domain)) {
            let message = format!("`{domain}` is not a trust domain; the entry is not used");
            return Err(("bad-value", message, "lower-case letters, digits, `.`, `-` and `_` are allowed"));
        }
        match (&self.pem, &self.spiffe_bundle_url) {
            (Some(pem), None) if pem.contains(CERTIFICATE) => Ok(FurtherRoots::Pem(pem)),
            (Some(_), None) => {
                let message = format!("`pem` has no `{CERTIFICATE}`; the entry is not used");
                Err(("bad-value", message, "write the roots as text in PEM, after `pem: |`"))
            }
            (None, Some(url)) if !url.starts_with("https://") => {
                let message = format!("`{url}` is no https:// URL; the entry is not used");
                Err(("bad-value", message, "a bundle endpoint is verified by its certificate (SPIFFE's `https_web`)"))
            }
            (None, Some(_)) if self.trust_domains.is_empty() => {
                let message = "whoever serves the bundle could vouch for every identity of the mesh; it is not used";
                Err(("missing-field", message.to_owned(), "name the bundle's trust domain in `trustDomains`"))
            }
            (None, Some(url)) => Ok(FurtherRoots::BundleUrl(url)),
            (Some(_), Some(_)) => {
                let message = "`pem` and `spiffeBundleUrl` exclude each other; the entry is not used".to_owned();
                Err(("conflict", message, "make two entries of it"))
            }
            (None, None) => {
                let message = "the entry has no roots; it is not used".to_owned();
                Err(("missing-field", message, "write `pem` or `spiffeBundleUrl`"))
            }
        }
    }
}

pub(super) fn check(entries: &[Spanned<CertificateData>], cx: &mut Context) {
    cx.at_field("caCertificates", |cx| {
        for (index, entry) in entries.iter().enumerate() {
            let Err((code, message, help)) = entry.value.read() else { continue };
            cx.at_index(index, |cx| cx.warning(code, &entry.span, message, help));
        }
    });
}
