//! "Did you mean …?"

use strsim::osa_distance;

/// Returns the candidate closest to the written name, if it is close enough to be a typing mistake.
pub fn closest<'a>(written: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong (a swap of neighbours counts once): enough for a swap in a short name, too little to join unrelated ones.
    let tolerance = (written.chars().count() / 3).max(1);
    let lower = written.to_lowercase();
    // Among equally close candidates, prefer the one with the longest common prefix: typing mistakes are rare at the
    // beginning of a word.
    let alike = |c: &str| lower.chars().zip(c.chars()).take_while(|(a, b)| a == b).count();
    // The distance is at least the difference of the lengths, and much dearer to compute.
    let length = lower.chars().count();
    let is_near = |c: &str| c.to_lowercase().chars().count().abs_diff(length) <= tolerance;
    candidates
        .into_iter()
        .filter(|c| is_near(c))
        .map(|c| (osa_distance(&lower, &c.to_lowercase()), c))
        .filter(|(d, _)| *d <= tolerance)
        .min_by_key(|(d, c)| (*d, std::cmp::Reverse(alike(&c.to_lowercase()))))
        .map(|(_, c)| c)
}

/// `a`, `b` or `c`.
pub fn one_of<'a>(allowed: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = allowed.into_iter().map(|a| format!("`{a}`")).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [init @ .., last] => format!("{} or {last}", init.join(", ")),
    }
}

/// Maximum number of names listed when a requested name does not exist.
const MAX_LISTED: usize = 10;

/// The hint for a name that does not exist: the closest existing name, and a list of some others.
pub fn instead<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let meant = closest(wanted, names.iter().copied()).map(|name| format!("did you mean `{name}`? "));
    let listed = names.iter().take(MAX_LISTED).copied().collect::<Vec<_>>().join(", ");
    let known = match names.len().saturating_sub(MAX_LISTED) {
        _ if names.is_empty() => "none is known".to_owned(),
        0 => format!("known: {listed}"),
        more => format!("known: {listed} and {more} more"),
    };
    meant.unwrap_or_default() + &known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_slips_and_leaves_strangers_alone() {
        let fields = ["hosts", "http", "gateways", "exportTo"];
        let check = |written, expected| assert_eq!(closest(written, fields), expected, "{written}");
        check("host", Some("hosts"));
        check("htpt", Some("http"));
        check("exportto", Some("exportTo"));
        check("gatewais", Some("gateways"));
        check("selector", None);
        check("", None);
        assert_eq!(closest("v2", ["v1", "w2", "v3"]), Some("v1"));
        assert_eq!(closest("reviewz", ["previews", "review", "reviews"]), Some("review"));
    }

    #[test]
    fn says_what_there_is_instead_but_not_all_of_it() {
        let check = |wanted, names: &[&str], expected| assert_eq!(instead(wanted, names.iter().copied()), expected);
        check("web", &[], "none is known");
        check(
            "wbe-0.shop",
            &["cart-0.shop", "web-0.shop"],
            "did you mean `web-0.shop`? known: cart-0.shop, web-0.shop",
        );
        let many: Vec<String> = (0..5_000).map(|number| format!("pod-{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check("x", &many, "known: pod-0, pod-1, pod-2, pod-3, pod-4, pod-5, pod-6, pod-7, pod-8, pod-9 and 4990 more");
    }
}
