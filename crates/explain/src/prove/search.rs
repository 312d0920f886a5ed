//! The search for a request that gets through on one call path.

use super::answer::{Claim, Witness};
use super::call_path::{CallPath, LeftOut};
use super::formula::Formula;
use super::space::{Expr, Space};
use super::trial;
use crate::world::World;

/// Requests that are tried on one call path before it is given up, in requests.
const MAX_TRIALS: usize = 32;

/// The result of a search.
pub enum Found {
    /// A request.
    Witness(Box<Witness>),
    /// There is none.
    Nothing,
    /// That is not decided, for this reason.
    Undecided(String),
}

/// Searches for a request that gets through: one without a token if there is any, because that can be tried.
pub fn search(call_path: &CallPath, world: &World, claim: &Claim) -> Found {
    let without = Claim { without_jwt: true, ..claim.clone() };
    let found = among(call_path, world, &without);
    if claim.without_jwt || matches!(found, Found::Witness(_)) {
        return found;
    }
    match (found, among(call_path, world, claim)) {
        // Tokens open what is closed without: that depends on what issuers sign.
        (Found::Nothing, Found::Undecided(_)) => Found::Undecided(format!(
            "{} to {}: nothing gets through without a token, and with one it depends on what the issuer signs",
            call_path.client.name(),
            call_path.upstream.to
        )),
        (_, found) => found,
    }
}

fn among(call_path: &CallPath, world: &World, claim: &Claim) -> Found {
    let space;
    let formula;
    {
        let server = call_path.at_server(world);
        let expr = call_path.expr(claim, server.as_ref(), &LeftOut::default());
        if matches!(expr, Expr::Const(false)) {
            return Found::Nothing;
        }
        let given = call_path.given(claim, server.as_ref());
        space = match Space::new(&expr, &given) {
            Ok(space) => space,
            Err(error) => return Found::Undecided(error.to_string()),
        };
        formula = space.formula(&expr);
    }
    let mut all = vec![formula];
    for _ in 0..MAX_TRIALS {
        let conditions = Formula::And(all.clone());
        match conditions.solve(&space.counts()) {
            Err(error) => return Found::Undecided(error.to_string()),
            Ok(None) if all.len() == 1 && space.exact => return Found::Nothing,
            Ok(None) if all.len() == 1 => {
                let why = "policies or routes tell escapes or parameters in paths apart, some of which are refused as ambiguous";
                return Found::Undecided(why.to_owned());
            }
            Ok(None) => break,
            Ok(Some(classes)) => {
                let values = space.values(&classes);
                if let Some(witness) = trial::tried(call_path, world, &values) {
                    return Found::Witness(Box::new(witness));
                }
                all.push(space.except(&classes));
            }
        }
    }
    Found::Undecided(format!(
        "{} to {}: policies allow requests there, but something else decides about them (another filter, a header that \
         proxies make, chance, a path that is rewritten to another form)",
        call_path.client.name(),
        call_path.upstream.to
    ))
}

/// Whether there is a request that gets through, with some policies left out; unknown conditions count as met.
pub fn is_open(call_path: &CallPath, world: &World, claim: &Claim, left_out: &LeftOut) -> bool {
    let server = call_path.at_server(world);
    let expr = call_path.expr(claim, server.as_ref(), left_out);
    let Ok(space) = Space::new(&expr, &call_path.given(claim, server.as_ref())) else { return true };
    let formula = space.formula(&expr);
    !matches!(formula.solve(&space.counts()), Ok(None))
}
