//! What generators ask about the proxy they work for.
//!
//! Kinds and Sidecar are not noted: proxies that differ in them share no units. Of everything else two proxies are the same
//! to a generator if it would get the same answers.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_model::workload::selects;
use evenkeel_model::{Labels, Sidecar, Snapshot, Workload};

use crate::view::{ProxyKind, ProxyView};

/// One proxy: what it says of itself, and what the registry knows of its workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Client {
    /// What it says.
    pub view: Arc<ProxyView>,
    /// The workload behind a sidecar, or the router's own Pod; `None` until the registry knows it.
    pub workload: Option<Arc<Workload>>,
    /// The Sidecar that holds for it; a router has none.
    pub sidecar: Option<Arc<Sidecar>>,
    /// Calls of what no service describes are refused, whatever Sidecar and mesh say: a Sidecar is refused that may say so.
    pub registry_only: bool,
}

/// A question about a proxy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// Does its workload have all these labels?
    SelectedBy(Labels),
    /// Is it in this namespace?
    IsIn(Arc<str>),
    /// In which namespace is it?
    Namespace,
    /// Is this one of its addresses?
    HasAddress(IpAddr),
    /// In which locality does it run?
    Locality,
    /// What is its workload's label of this name?
    Label(Arc<str>),
    /// Does a load balancer before it tell who the client is?
    TakesProxyProtocol,
    /// Everything about its workload: no two proxies have the same.
    Workload,
}

/// The answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// It is so.
    Yes,
    /// It is not.
    No,
    /// A name.
    Text(Arc<str>),
    /// `namespace/pod` of the only one to get this answer.
    Alone(Arc<str>, Arc<str>),
}

impl Client {
    /// The proxy `view` at the moment of `snapshot`.
    pub fn new(view: Arc<ProxyView>, snapshot: &Snapshot) -> Self {
        let by_pod = snapshot.workload(&view.namespace, &view.pod);
        let workload = by_pod.or_else(|| view.addresses.iter().find_map(|address| snapshot.workload_at(*address)));
        let labels = workload.map_or(&view.labels, |workload| &workload.labels);
        let is_sidecar = view.kind == ProxyKind::Sidecar;
        let sidecar = snapshot.sidecar_for(&view.namespace, labels).filter(|_| is_sidecar);
        let registry_only = is_sidecar && snapshot.is_registry_only(&view.namespace, labels);
        Self { workload: workload.cloned(), sidecar: sidecar.cloned(), registry_only, view }
    }

    /// Labels that selectors look at: the registry's, else those the proxy brought.
    fn labels(&self) -> &Labels {
        self.workload.as_ref().map_or(&self.view.labels, |workload| &workload.labels)
    }

    /// `region/zone/subzone`; may be empty.
    pub fn locality(&self) -> &str {
        self.workload.as_ref().map_or("", |workload| &workload.locality)
    }

    /// The value of a label of its workload; may be empty.
    pub fn label(&self, name: &str) -> Arc<str> {
        self.labels().get(name).map_or_else(|| "".into(), |value| value.as_str().into())
    }

    /// The answer to a question about this proxy.
    pub fn answer(&self, question: &Question) -> Answer {
        let yes_or_no = |yes| if yes { Answer::Yes } else { Answer::No };
        match question {
            Question::SelectedBy(selector) => yes_or_no(selects(selector, self.labels())),
            Question::IsIn(namespace) => yes_or_no(self.view.namespace == *namespace),
            Question::Namespace => Answer::Text(self.view.namespace.clone()),
            Question::HasAddress(address) => yes_or_no(self.view.addresses.contains(address)),
            Question::TakesProxyProtocol => yes_or_no(self.view.takes_proxy_protocol),
            Question::Locality => {
                Answer::Text(self.workload.as_ref().map_or_else(|| "".into(), |workload| workload.locality.clone()))
            }
            Question::Label(name) => Answer::Text(self.label(name)),
            Question::Workload => Answer::Alone(self.view.namespace.clone(), self.view.pod.clone()),
        }
    }
}

/// The questions asked while one answer was made.
#[derive(Debug, Default)]
pub struct Facts(RefCell<Vec<Question>>);

impl Facts {
    /// Nothing was asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was asked, each question once, in order.
    pub fn into_questions(self) -> Vec<Question> {
        let mut questions = self.0.into_inner();
        questions.sort_unstable();
        questions.dedup();
        questions
    }

    /// Notes a question.
    pub fn note(&self, question: Question) {
        self.0.borrow_mut().push(question);
    }
}
