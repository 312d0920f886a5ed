//! Ingresses as routes, with a Gateway for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::kubernetes::{Ingress, IngressBackend, IngressPath, PathType, ingress_host};
use evenkeel_api::{Object, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Span, Spanned};
use evenkeel_model::{HttpMatch, Snapshot, StringMatch};
use serde_json::{Map, Value, json};

use super::conditions::conditions;
use super::documents::{Documents, RouteDocument, object};
use super::guards::{NewProxies, lost_guard};
use super::nginx::{Canary, NginxSettings};
use super::nginx_table::PREFIX;
use super::writer::Writer;
use super::{GatewayName, RouteOptions, WrittenRoutes};

/// The annotation that named the class before `ingressClassName`.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
/// Prefixes of annotations that are no settings of a controller.
const NEUTRAL: &[&str] =
    &["kubectl.kubernetes.io/", "meta.helm.sh/", "kubernetes.io/", "argocd.argoproj.io/", "helm.sh/"];
/// Parts of the names of annotations that are settings of some controller.
const CONTROLLERS: &[&str] =
    &["ingress.kubernetes.io", "traefik", "haproxy", "konghq.com", "ingress.cloud.google.com", "ingress.pomerium.io"];
/// The name of the listener of plain HTTP.
const PLAIN: &str = "http";

/// Whose an Ingress is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Istio,
    Nginx,
    /// Another one, or nobody's.
    Other,
}

/// A rule with what it matches.
struct PathRule {
    /// Host, path and type: what a canary has in common with what it is the canary of.
    key: (String, String, Option<PathType>),
    rule: Map<String, Value>,
}

/// An Ingress before canaries are joined.
struct Draft<'a> {
    writer: Writer<'a>,
    ingress: &'a Ingress,
    controller: Controller,
    class: String,
    rules: Vec<PathRule>,
    canary: Option<Canary>,
    aliases: Vec<String>,
    redirects_to_https: bool,
    app_root: Option<Value>,
}

/// The listeners of a Gateway or a ListenerSet: the host, and its Secrets.
type Certificates = BTreeMap<String, Vec<String>>;

/// Writes the routes of all Ingresses.
pub(super) fn write(
    objects: &[&Object],
    snapshot: &Snapshot,
    options: &RouteOptions,
    documents: &mut Documents,
    written: &mut WrittenRoutes,
) {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for object in objects {
        let Resource::Ingress(ingress) = &object.resource else { continue };
        drafts.push(Draft::new(objects, Writer::new(object, snapshot, options), ingress));
    }
    join_canaries(&mut drafts);
    let mut listeners: BTreeMap<(Arc<str>, String), Certificates> = BTreeMap::new();
    for draft in &mut drafts {
        draft.check_certificates();
        draft.check_guards();
        if draft.writer.is_refused {
            continue;
        }
        let own = listeners.entry((draft.writer.object.namespace.clone(), draft.class.clone())).or_default();
        for (host, secret) in draft.certificates() {
            own.entry(host).or_insert_with(|| vec![secret]);
        }
    }
    for draft in drafts.iter_mut().filter(|draft| !draft.writer.is_refused) {
        let mut certificates = draft.certificates();
        // A host has its certificate in all Ingresses of the class, whichever of them names it.
        let shared = listeners.get(&(draft.writer.object.namespace.clone(), draft.class.clone()));
        for (host, secrets) in shared.into_iter().flatten() {
            let is_own = draft.rules.iter().any(|rule| rule.key.0 == *host);
            if let (true, Some(secret)) = (is_own, secrets.first()) {
                certificates.entry(host.clone()).or_insert_with(|| secret.clone());
            }
        }
        let parent = draft.parent();
        draft.documents(&parent, &certificates, documents);
    }
    for ((namespace, class), certificates) in &listeners {
        documents.object(gateway(namespace, class, certificates, options.gateway.as_ref()));
    }
    for draft in drafts {
        let list = if draft.writer.is_refused { &mut written.remaining } else { &mut written.replaced };
        list.push(draft.writer.object.reference());
        written.findings.extend(draft.writer.findings);
    }
}

/// A Gateway for the Ingresses of a namespace, or their listeners at a Gateway that is there.
fn gateway(namespace: &str, class: &str, certificates: &Certificates, at: Option<&GatewayName>) -> Value {
    let mut listeners = vec![json!({"name": PLAIN, "port": 80, "protocol": "HTTP"})];
    for (host, secrets) in certificates {
        let references: Vec<Value> = secrets.iter().map(|secret| json!({"name": secret})).collect();
        let mut listener = Map::from_iter([
            ("name".to_owned(), Value::from(section(host))),
            ("port".to_owned(), 443.into()),
            ("protocol".to_owned(), "HTTPS".into()),
        ]);
        if host != "*" {
            listener.insert("hostname".to_owned(), host.as_str().into());
        }
        listener.insert("tls".to_owned(), json!({"certificateRefs": references}));
        listeners.push(listener.into());
    }
    match at {
        None => object("Gateway", namespace, class, json!({"gatewayClassName": "istio", "listeners": listeners})),
        Some(at) => {
            let parent = json!({"name": &*at.name, "namespace": &*at.namespace});
            object("ListenerSet", namespace, class, json!({"parentRef": parent, "listeners": listeners}))
        }
    }
}

/// The name of the listener with TLS for a host.
fn section(host: &str) -> String {
    match host.strip_prefix("*") {
        Some(rest) => format!("https-any{}", rest.replace('.', "-")),
        None => format!("https-{}", host.replace('.', "-")),
    }
}

/// Adds canaries to the rules that they are the canaries of.
fn join_canaries(drafts: &mut [Draft<'_>]) {
    for at in 0..drafts.len() {
        let Some(draft) = drafts.get_mut(at).filter(|draft| draft.canary.is_some()) else { continue };
        let Some(canary) = draft.canary.clone() else { continue };
        let rules = std::mem::take(&mut draft.rules);
        let (namespace, is_refused) = (draft.writer.object.namespace.clone(), draft.writer.is_refused);
        let name = draft.writer.object.to_string();
        let mut is_alone = false;
        for own in rules {
            let is_it = |other: &&mut Draft<'_>| {
                let same = other.rules.iter().any(|rule| rule.key == own.key);
                other.canary.is_none() && other.writer.object.namespace == namespace && same
            };
            let Some(main) = drafts.iter_mut().find(is_it) else {
                is_alone = true;
                continue;
            };
            if is_refused {
                let origin = main.writer.object.origin.clone();
                main.writer.refuse(
                    &origin,
                    format!("its canary, {name}, has no equal"),
                    "see the findings about that one",
                );
            }
            main.add_canary(&own, &canary);
        }
        if let Some(draft) = drafts.get_mut(at).filter(|_| is_alone) {
            let origin = draft.writer.object.origin.clone();
            draft.writer.refuse(
                &origin,
                "it is the canary of no other Ingress",
                "give it the same host and path, or remove `canary`",
            );
        }
        // Mains that remain keep their canaries.
        let main_remains = drafts
            .iter()
            .any(|main| main.canary.is_none() && main.writer.is_refused && main.writer.object.namespace == namespace);
        if let Some(draft) = drafts.get_mut(at).filter(|_| main_remains) {
            let origin = draft.writer.object.origin.clone();
            draft.writer.refuse(
                &origin,
                "the Ingress that it is the canary of may remain",
                "see the findings about the others of the namespace",
            );
        }
    }
}

impl<'a> Draft<'a> {
    fn new(objects: &[&Object], mut writer: Writer<'a>, ingress: &'a Ingress) -> Self {
        let own = writer.object;
        let (controller, class) = controller(objects, own, ingress);
        let settings = if controller == Controller::Nginx {
            NginxSettings::read(&mut writer, own)
        } else {
            NginxSettings::default()
        };
        note_annotations(&mut writer, controller);
        let canary = settings.canary(&mut writer);
        let mut rules = Vec::new();
        for rule in &ingress.spec.rules {
            let host = rule.host.as_ref().map_or_else(|| "*".to_owned(), |host| host.value.to_ascii_lowercase());
            let host = if host.is_empty() { "*".to_owned() } else { host };
            for path in rule.http.iter().flat_map(|http| &http.paths) {
                let key = (
                    host.clone(),
                    path.path.as_ref().map(|path| path.value.clone()).unwrap_or_default(),
                    path.path_type,
                );
                let rule = path_rule(&mut writer, controller, &settings, path);
                rules.extend(rule.map(|rule| PathRule { key: key.clone(), rule }));
            }
        }
        settings.note_protocol(&mut writer);
        let mut draft = Self {
            ingress,
            controller,
            class,
            rules,
            canary,
            aliases: settings.aliases(),
            redirects_to_https: controller == Controller::Nginx && settings.redirects_to_https(),
            app_root: settings.app_root(),
            writer,
        };
        draft.default_backend(&settings);
        draft
    }

    /// The backend of what no rule matches: of each host, and of other hosts.
    fn default_backend(&mut self, settings: &NginxSettings<'_>) {
        let Some(backend) = &self.ingress.spec.default_backend else { return };
        if self.controller == Controller::Istio {
            self.writer.note(&backend.span, "`defaultBackend` is left out, because Istio does not serve it");
            return;
        }
        let Some(reference) = backend_ref(&mut self.writer, backend) else { return };
        let filters = settings.filters(&mut self.writer, None);
        let mut hosts: Vec<String> = self.rules.iter().map(|rule| rule.key.0.clone()).collect();
        hosts.push("*".to_owned());
        hosts.sort();
        hosts.dedup();
        for host in hosts {
            let is_served = |rule: &PathRule| rule.key.0 == host && rule.key.1 == "/";
            if self.rules.iter().any(is_served) {
                continue;
            }
            let mut rule = Map::from_iter([("backendRefs".to_owned(), json!([reference]))]);
            if !filters.is_empty() {
                rule.insert("filters".to_owned(), filters.clone().into());
            }
            self.rules.push(PathRule { key: (host, "/".to_owned(), None), rule });
        }
    }

    fn add_canary(&mut self, canary: &PathRule, how: &Canary) {
        let Some(at) = self.rules.iter().position(|rule| rule.key == canary.key) else { return };
        let Some(main) = self.rules.get_mut(at) else { return };
        let with_header = |rule: &Map<String, Value>, header: &Value| {
            let mut rule = rule.clone();
            let matches = rule.entry("matches").or_insert_with(|| json!([{}]));
            for one in matches.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                one.insert("headers".to_owned(), json!([header]));
            }
            rule
        };
        let plain = main.rule.clone();
        let mut before: Vec<Map<String, Value>> = Vec::new();
        before.extend(how.always.iter().map(|header| with_header(&canary.rule, header)));
        before.extend(how.never.iter().map(|header| with_header(&plain, header)));
        if how.weight > 0 {
            let weighted = |rule: &Map<String, Value>, weight: u32| -> Vec<Value> {
                let backends = rule.get("backendRefs").and_then(Value::as_array).into_iter().flatten().cloned();
                backends
                    .map(|mut backend| {
                        if let Some(fields) = backend.as_object_mut() {
                            fields.insert("weight".to_owned(), weight.into());
                        }
                        backend
                    })
                    .collect()
            };
            let mut backends = weighted(&plain, how.total - how.weight);
            backends.extend(weighted(&canary.rule, how.weight));
            main.rule.insert("backendRefs".to_owned(), backends.into());
        }
        let key = main.key.clone();
        self.rules.splice(at..at, before.into_iter().map(|rule| PathRule { key: key.clone(), rule }));
    }

    /// A host with TLS needs a Secret that is named.
    fn check_certificates(&mut self) {
        if self.controller == Controller::Istio && !self.ingress.spec.tls.is_empty() {
            self.writer.differs(
                &self.writer.object.origin.clone(),
                "Istio reads the Secret of `tls` in the namespace of its gateway, and a Gateway in its own",
                "copy the Secret into the namespace of the Ingress",
            );
        }
        for tls in &self.ingress.spec.tls {
            if tls.secret_name.as_ref().is_none_or(|name| name.is_empty()) {
                self.writer.refuse(
                    &tls.span,
                    "`tls` names no Secret, so its certificate is a setting of the controller",
                    "name one by `secretName`",
                );
            }
        }
    }

    /// Istio's gateway serves the Ingress with the policies that select its proxies; other proxies serve the Gateway that is written.
    fn check_guards(&mut self) {
        let Writer { object, snapshot, options, .. } = self.writer;
        let Some(gateway) = snapshot.gateways.iter().find(|gateway| gateway.origin == object.origin) else { return };
        let new = match &options.gateway {
            Some(at) => NewProxies::of(&at.namespace, &at.name),
            None => NewProxies::of(&object.namespace, &self.class),
        };
        if let Some(guard) = lost_guard(snapshot, gateway, &gateway.namespace, &new) {
            self.writer.refuse(
                &object.origin,
                format!("{guard} guards the proxies that serve it now, and would not select those of the Gateway that is written"),
                "let the policy name the Gateway by `targetRefs` or select its proxies (`gateway.networking.k8s.io/gateway-name`), too",
            );
        }
    }

    /// The hosts with TLS, each with its Secret.
    fn certificates(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for tls in &self.ingress.spec.tls {
            let Some(secret) = &tls.secret_name else { continue };
            let any = [Spanned::new(String::new(), Span::default())];
            let hosts = if tls.hosts.is_empty() { &any[..] } else { tls.hosts.as_slice() };
            for host in hosts.iter().filter_map(|host| ingress_host(Some(&host.value))) {
                all.entry(host.as_str().to_ascii_lowercase()).or_insert_with(|| secret.value.clone());
            }
        }
        all
    }

    /// What routes attach to, without a section.
    fn parent(&self) -> Map<String, Value> {
        let mut parent = Map::new();
        if self.writer.options.gateway.is_some() {
            parent.insert("kind".to_owned(), "ListenerSet".into());
        }
        parent.insert("name".to_owned(), self.class.as_str().into());
        parent
    }

    fn documents(
        &mut self,
        parent: &Map<String, Value>,
        certificates: &BTreeMap<String, String>,
        documents: &mut Documents,
    ) {
        let mut hosts: Vec<String> = self.rules.iter().map(|rule| rule.key.0.clone()).collect();
        hosts.sort();
        hosts.dedup();
        let at = |section: &str| {
            let mut parent = parent.clone();
            parent.insert("sectionName".to_owned(), section.into());
            Value::Object(parent)
        };
        let (name, origin) = (self.writer.object.name.to_string(), self.writer.object.origin.clone());
        let namespace = self.writer.object.namespace.clone();
        for host in hosts {
            let covers = |own: &&String| match (Hostname::parse(own), Hostname::parse(&host)) {
                (Ok(own), Ok(host)) => own.covers(&host),
                _ => false,
            };
            let sections: Vec<String> = certificates.keys().filter(covers).map(|own| section(own)).collect();
            let redirects = !sections.is_empty() && self.redirects_to_https;
            let plain = (!redirects).then(|| at(PLAIN));
            let hostnames: Vec<String> =
                std::iter::once(host.clone()).chain(self.aliases.clone()).filter(|host| host != "*").collect();
            let route = |name: String, parents: Vec<Value>, rules: Vec<Map<String, Value>>| RouteDocument {
                kind: "HTTPRoute",
                namespace: namespace.clone(),
                name,
                parents,
                hostnames: hostnames.clone(),
                rules,
                origin: origin.clone(),
            };
            let root = self.app_root.iter().filter_map(Value::as_object).cloned();
            let own = self.rules.iter().filter(|rule| rule.key.0 == host).map(|rule| rule.rule.clone());
            let rules: Vec<Map<String, Value>> = root.chain(own).collect();
            let parents = plain.into_iter().chain(sections.iter().map(|section| at(section))).collect();
            documents.route(route(name.clone(), parents, rules));
            if redirects {
                let redirect = json!({"scheme": "https", "statusCode": 308});
                let filter = json!([{"type": "RequestRedirect", "requestRedirect": redirect}]);
                let rules = vec![Map::from_iter([("filters".to_owned(), filter)])];
                documents.route(route(format!("{name}-https-redirect"), vec![at(PLAIN)], rules));
            }
        }
    }
}

/// Whose an Ingress is, and the name of its class.
fn controller(objects: &[&Object], own: &Object, ingress: &Ingress) -> (Controller, String) {
    let annotated = own.annotations.get(CLASS_ANNOTATION).map(|class| class.value.as_str());
    let named = annotated.or(ingress.spec.ingress_class_name.as_ref().map(|class| class.value.as_str()));
    let of_class = objects.iter().find_map(|object| match &object.resource {
        Resource::IngressClass(class) if named == Some(&*object.name) => class.spec.controller.as_deref(),
        _ => None,
    });
    let has_annotation = own.annotations.keys().any(|name| name.starts_with(PREFIX));
    let controller = match (of_class, named) {
        (Some("k8s.io/ingress-nginx"), _) | (None, Some("nginx")) => Controller::Nginx,
        (Some("istio.io/ingress-controller"), _) | (None, Some("istio")) => Controller::Istio,
        (None, None) if has_annotation => Controller::Nginx,
        _ => Controller::Other,
    };
    let name = named.filter(|name| !name.is_empty()).unwrap_or("ingress");
    (controller, name.to_owned())
}

/// Settings of controllers that are not known.
fn note_annotations(writer: &mut Writer<'_>, controller: Controller) {
    let own = writer.object;
    for (name, value) in &own.annotations {
        let is_read = name.starts_with(PREFIX) && controller == Controller::Nginx;
        if is_read || name == CLASS_ANNOTATION || NEUTRAL.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        if CONTROLLERS.iter().any(|part| name.contains(part)) {
            let help = "remove it, or write the routes by hand";
            writer.refuse(
                &value.span,
                format!("the annotation `{name}` is a setting of a controller, whose meaning is not known"),
                help,
            );
        } else {
            writer.note(
                &value.span,
                format!("the annotation `{name}` is left out; give it to the Gateway or the route, if it is for one"),
            );
        }
    }
}

fn path_rule(
    writer: &mut Writer<'_>,
    controller: Controller,
    settings: &NginxSettings<'_>,
    path: &Spanned<IngressPath>,
) -> Option<Map<String, Value>> {
    let mut rule = Map::new();
    let written = path.path.as_ref().map_or("", |path| path.value.as_str());
    let mut rewrite = None;
    let condition = if controller == Controller::Nginx && settings.uses_regex() {
        let read = settings.path(writer, written, &path.span);
        rewrite = read.rewrite;
        Some(read.condition)
    } else {
        typed_path(writer, controller, path, written)
    };
    if let Some(condition) = condition {
        rule.insert("matches".to_owned(), json!([{"path": condition}]));
    }
    if let Some(redirect) = settings.redirect(writer) {
        rule.insert("filters".to_owned(), json!([redirect]));
        return Some(rule);
    }
    let backend = backend_ref(writer, &path.backend)?;
    rule.insert("backendRefs".to_owned(), json!([backend]));
    let filters = settings.filters(writer, rewrite);
    if !filters.is_empty() {
        rule.insert("filters".to_owned(), filters.into());
    }
    if let Some(persistence) = settings.persistence(writer) {
        rule.insert("sessionPersistence".to_owned(), persistence);
    }
    Some(rule)
}

/// The condition on a path by its type; `None`: every path.
fn typed_path(
    writer: &mut Writer<'_>,
    controller: Controller,
    path: &Spanned<IngressPath>,
    written: &str,
) -> Option<Value> {
    let uri = match (path.path_type, controller) {
        (Some(PathType::Exact), _) => StringMatch::Exact(written.into()),
        (Some(PathType::Prefix), _) => return by_parts(written),
        (_, Controller::Nginx) => StringMatch::Prefix(written.into()),
        (_, Controller::Istio) => match written {
            "" | "*" | "/*" | ".*" => return None,
            _ => match written.strip_suffix(".*").or_else(|| written.strip_suffix("/*")) {
                Some(start) => return by_parts(start),
                None => StringMatch::Exact(written.into()),
            },
        },
        (_, Controller::Other) => {
            let message = "`pathType`: what it means is the controller's to say; it becomes `PathPrefix`";
            writer.differs(&path.span, message, "write `pathType: Prefix` or `Exact`");
            return by_parts(written);
        }
    };
    let original = HttpMatch { uri: Some(uri), origin: path.span.clone(), ..HttpMatch::default() };
    conditions(writer, &original).first().and_then(|condition| condition.json.get("path").cloned())
}

fn by_parts(path: &str) -> Option<Value> {
    let parts = path.trim_end_matches('/');
    (!parts.is_empty()).then(|| json!({"type": "PathPrefix", "value": parts}))
}

/// The reference to a backend, whose port has to be known by its number.
fn backend_ref(writer: &mut Writer<'_>, backend: &Spanned<IngressBackend>) -> Option<Value> {
    let Some(service) = &backend.service else {
        writer.refuse(&backend.span, "`backend` names no Service", "name one, or leave the Ingress");
        return None;
    };
    let host = Hostname::of_service(&service.name, &writer.object.namespace, &writer.snapshot.mesh.cluster_domain);
    let known = writer.service(&host);
    let by_name = || {
        let name = service.port.as_ref()?.name.as_ref()?;
        known?.port_named(&name.0).map(|port| port.number)
    };
    let number = service.port.as_ref().and_then(|port| port.number).map(|number| number.0).or_else(by_name);
    let Some(number) = number else {
        let message = format!("the port of the Service `{}` is not known", service.name.value);
        writer.refuse(&service.name.span, message, "name it by its number, or add the Service to what is read");
        return None;
    };
    if known.is_none_or(|known| known.port(number).is_none()) {
        let message = format!(
            "there is no Service `{}` with the port {number}: its route answers 500, not 503",
            service.name.value
        );
        writer.differs(&service.name.span, message, "correct it");
    }
    Some(json!({"name": service.name.value, "port": number}))
}
