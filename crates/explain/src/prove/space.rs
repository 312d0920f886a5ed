//! The attributes of a request that some condition depends on, and the classes of their values.
//!
//! To prove with a further attribute, add a [`Name`] and the tests that ask about it: the search does not change.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evenkeel_base::cidr::IpNet;

use super::atoms::{TooMany, classes, line_classes};
use super::formula::{Formula, Set};
use super::language::{Domain, Language, Normal};

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// The method.
    Method,
    /// The authority.
    Authority,
    /// Path and query.
    Path,
    /// The lines of a header.
    Header(Box<str>),
    /// The address of a client that may be any.
    Client,
    /// Whether what a filter says of the request meets a matcher, by the matcher's text: an issuer may sign anything.
    Token(Box<str>),
}

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A text.
    Text(String),
    /// The lines of a header; none: it is absent.
    Lines(Vec<String>),
    /// An address.
    Address(IpAddr),
}

/// The value of a [`Name::Token`] that meets its matcher.
pub const TOLD: &str = "told";
const NOT_TOLD: &str = "not told";

/// The values that a condition distinguishes.
pub enum Parts {
    /// Texts.
    Languages(Vec<Language>),
    /// Addresses.
    Ranges(Vec<IpNet>),
    /// Only true and false.
    Fact,
}

/// Whether a value meets a test; `None`: that is not known.
pub type Holds<'e> = Box<dyn Fn(&Value) -> Option<bool> + 'e>;

/// A condition on a request.
pub enum Expr<'e> {
    /// Always or never.
    Const(bool),
    /// Unknown: another filter, or chance, decides.
    Unknown,
    /// All of them.
    And(Vec<Expr<'e>>),
    /// One of them.
    Or(Vec<Expr<'e>>),
    /// Not it.
    Not(Box<Expr<'e>>),
    /// An attribute meets a test.
    Test(Name, Parts, Holds<'e>),
}

/// The given attributes of the request, and the possible values of the others.
#[derive(Debug, Clone, Default)]
pub struct KnownRequest {
    /// The method; `None`: any.
    pub method: Option<String>,
    /// The authority; `None`: any.
    pub authority: Option<String>,
    /// Path and query; `None`: any.
    pub path: Option<String>,
    /// The normalization of paths.
    pub normal: Normal,
    /// Authorities that are tried first.
    pub liked: Vec<String>,
}

/// The classes of each attribute's values.
pub struct Space {
    attributes: Vec<(Name, Vec<Value>)>,
    /// Whether what is not found is not there: false if paths that were left out may be judged otherwise.
    pub exact: bool,
}

impl Space {
    /// The classes that the tests of a condition tell apart.
    pub fn new(expr: &Expr<'_>, given: &KnownRequest) -> Result<Self, TooMany> {
        let mut parts: BTreeMap<Name, (Vec<Language>, Vec<IpNet>)> = BTreeMap::new();
        for name in [Name::Method, Name::Authority, Name::Path] {
            parts.entry(name).or_default();
        }
        collect(expr, &mut parts);
        let mut attributes = Vec::new();
        let mut exact = true;
        for (name, (languages, ranges)) in parts {
            let texts = |domain, given: &Option<String>, liked: &[String]| match given {
                Some(given) => Ok(vec![Value::Text(given.clone())]),
                None => {
                    let found = classes(domain, &languages, liked)?;
                    Ok(found.into_iter().map(|(_, text)| Value::Text(text)).collect())
                }
            };
            if name == Name::Path && given.normal.plain && given.path.is_none() {
                let mut told = [false; 256];
                // That a rewritten path is in its form does not depend on them.
                let is_form = |language: &&Language| matches!(language, Language::Rewritten(_, inner) if matches!(**inner, Language::Domain(_)));
                languages.iter().filter(|one| !is_form(one)).for_each(|language| language.bytes(&mut told));
                exact = Normal::NOT_PLAIN.iter().all(|byte| !told.get(usize::from(*byte)).copied().unwrap_or_default());
            }
            let values = match &name {
                Name::Method => texts(Domain::Method, &given.method, &["GET", "POST"].map(str::to_owned))?,
                Name::Authority => texts(Domain::Authority, &given.authority, &given.liked)?,
                Name::Path => texts(Domain::Path(given.normal), &given.path, &["/".to_owned()])?,
                // A header of which both texts and addresses are asked has no classes of its own.
                Name::Header(_) if !languages.is_empty() && !ranges.is_empty() => return Err(TooMany),
                Name::Header(_) if !ranges.is_empty() => {
                    let lines = addresses(&ranges).into_iter().map(|address| Value::Lines(vec![address.to_string()]));
                    std::iter::once(Value::Lines(Vec::new())).chain(lines).collect()
                }
                Name::Header(_) => line_classes(&languages, &[])?.into_iter().map(Value::Lines).collect(),
                Name::Token(_) => [TOLD, NOT_TOLD].map(|word| Value::Text(word.to_owned())).to_vec(),
                Name::Client => addresses(&ranges).into_iter().map(Value::Address).collect(),
            };
            attributes.push((name, values));
        }
        Ok(Self { attributes, exact })
    }

    /// Returns the number of classes of each attribute.
    pub fn counts(&self) -> Vec<usize> {
        self.attributes.iter().map(|(_, values)| values.len()).collect()
    }

    /// Returns the condition over these classes. Unknown conditions count as met.
    pub fn formula(&self, expr: &Expr<'_>) -> Formula {
        self.told(expr, true)
    }

    fn told(&self, expr: &Expr<'_>, unknown: bool) -> Formula {
        match expr {
            Expr::Const(value) => Formula::Const(*value),
            Expr::Unknown => Formula::Const(unknown),
            Expr::And(all) => Formula::And(all.iter().map(|one| self.told(one, unknown)).collect()),
            Expr::Or(all) => Formula::Or(all.iter().map(|one| self.told(one, unknown)).collect()),
            Expr::Not(inner) => Formula::Not(Box::new(self.told(inner, !unknown))),
            Expr::Test(name, _, holds) => {
                let found = self.attributes.iter().position(|(own, _)| own == name);
                let Some((at, (_, values))) = found.and_then(|at| Some((at, self.attributes.get(at)?))) else {
                    return Formula::Const(unknown);
                };
                let met: Vec<bool> = values.iter().map(|value| holds(value).unwrap_or(unknown)).collect();
                Formula::Is(at, Set::of(values.len(), |class| met.get(class).copied().unwrap_or_default()))
            }
        }
    }

    /// The values of these classes.
    pub fn values(&self, classes: &[usize]) -> BTreeMap<Name, Value> {
        let of =
            |((name, values), class): (&(Name, Vec<Value>), &usize)| Some((name.clone(), values.get(*class)?.clone()));
        self.attributes.iter().zip(classes).filter_map(of).collect()
    }

    /// The condition that a request is not in just these classes.
    pub fn except(&self, classes: &[usize]) -> Formula {
        let counts = self.counts();
        let is = classes.iter().enumerate().map(|(attribute, class)| {
            let count = counts.get(attribute).copied().unwrap_or_default();
            Formula::Is(attribute, Set::of(count, |at| at == *class))
        });
        Formula::Not(Box::new(Formula::And(is.collect())))
    }
}

fn collect(expr: &Expr<'_>, all: &mut BTreeMap<Name, (Vec<Language>, Vec<IpNet>)>) {
    match expr {
        Expr::Const(_) | Expr::Unknown => {}
        Expr::And(list) | Expr::Or(list) => list.iter().for_each(|one| collect(one, all)),
        Expr::Not(inner) => collect(inner, all),
        Expr::Test(name, parts, _) => {
            let (languages, ranges) = all.entry(name.clone()).or_default();
            match parts {
                Parts::Languages(more) => languages.extend(more.iter().cloned()),
                Parts::Ranges(more) => ranges.extend(more.iter().copied()),
                Parts::Fact => {}
            }
        }
    }
}

/// Returns one address of each class that ranges distinguish: the first of each range, the first beyond it, and one in none.
fn addresses(ranges: &[IpNet]) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = vec![
        Ipv4Addr::new(203, 0, 113, 1).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        Ipv4Addr::new(1, 0, 0, 1).into(),
    ];
    for range in ranges {
        all.push(range.network());
        all.extend(match range.broadcast() {
            IpAddr::V4(last) => u32::from(last).checked_add(1).map(|next| IpAddr::from(Ipv4Addr::from(next))),
            IpAddr::V6(last) => u128::from(last).checked_add(1).map(|next| IpAddr::from(Ipv6Addr::from(next))),
        });
    }
    let first = |range: &IpNet| match range {
        IpNet::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpNet::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    all.extend(ranges.iter().map(first));
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|address| seen.insert(*address));
    all
}
