//! `evenkeel proxy-config secrets`: the certificates and roots that a proxy has by SDS, and those that it waits for.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::dump::{list, text};

/// The page that has what the certificates say.
pub const PAGE: &str = "/certs";

/// The heads of the columns.
pub const COLUMNS: [&str; 6] = ["RESOURCE NAME", "TYPE", "STATUS", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE"];

/// The rows of secrets. `certificates` is the page `/certs`; a stock Envoy names no secrets there, so their dates are missing.
pub fn rows(secrets: &[&Json], status: &str, certificates: &Json) -> Vec<[String; 6]> {
    let mut by_name: BTreeMap<&str, &Json> = BTreeMap::new();
    for certificate in list(certificates, "certificates") {
        for one in ["cert_chain", "ca_cert"].iter().flat_map(|key| list(certificate, key)) {
            let name = text(one, "path").trim_start_matches("<sds: ").trim_end_matches('>');
            // The leaf is the first.
            by_name.entry(name).or_insert(one);
        }
    }
    let row = |secret: &&Json| {
        let name = text(secret, "name");
        let kind = match (secret.get("tls_certificate"), secret.get("validation_context")) {
            (Some(_), _) => "Cert Chain",
            (None, Some(_)) => "CA",
            (None, None) => "Other",
        };
        let of = |key: &str| by_name.get(name).map_or("-", |found| text(found, key)).to_owned();
        let dates = [of("serial_number"), of("expiration_time"), of("valid_from")];
        let [serial, until, since] = dates;
        [name.to_owned(), kind.to_owned(), status.to_owned(), serial, until, since]
    };
    secrets.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_have_the_dates_of_their_first_certificate() {
        let certificates = json!({"certificates": [
            {"cert_chain": [
                {"path": "<sds: default>", "serial_number": "1", "expiration_time": "until", "valid_from": "since"},
                {"path": "<sds: default>", "serial_number": "issuer", "expiration_time": "later", "valid_from": "earlier"},
            ], "ca_cert": []},
        ]});
        let (own, roots) =
            (json!({"name": "default", "tls_certificate": {}}), json!({"name": "ROOTCA", "validation_context": {}}));
        assert_eq!(
            rows(&[&own, &roots], "ACTIVE", &certificates),
            [
                ["default", "Cert Chain", "ACTIVE", "1", "until", "since"].map(str::to_owned),
                ["ROOTCA", "CA", "ACTIVE", "-", "-", "-"].map(str::to_owned),
            ]
        );
    }
}
