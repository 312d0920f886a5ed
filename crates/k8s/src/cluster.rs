//! A cluster for commands: objects as JSON are applied, read and deleted by the user's own rights.

use std::time::SystemTime;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, LogParams, Patch, PatchParams, PostParams,
};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::Value;

use crate::client::{ClientError, ClusterOptions, ExecPlugins};
use crate::port_forward::PodPort;
use crate::reason::reason;

/// Objects in one answer to a list.
const PAGE: u32 = 500;

/// Kinds without a namespace.
const CLUSTER_SCOPED: &[&str] = &[
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "GatewayClass",
    "MutatingWebhookConfiguration",
    "Namespace",
    "Node",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// Why a call has failed.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The API server has refused it.
    #[error("{what}: {message}")]
    Refused {
        /// The call.
        what: String,
        /// HTTP's status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// The API server has not been reached, or its answer is none.
    #[error("{what}: {reason}")]
    Failed {
        /// The call.
        what: String,
        /// The error and its causes.
        reason: String,
    },
}

impl ClusterError {
    fn of(what: String, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused { what, code: status.code, message: status.message.clone() },
            error => Self::Failed { what, reason: reason(error) },
        }
    }

    /// Whether the API server does not know the object, or its kind.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: 404, .. })
    }
}

/// What an application has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// There was no such object.
    Created,
    /// It has been changed.
    Configured,
    /// It was like this.
    Unchanged,
}

/// An object before and after an application.
struct Applied {
    before: Option<DynamicObject>,
    after: DynamicObject,
}

/// What an application would change.
#[derive(Debug, Clone)]
pub struct Preview {
    /// The object now; `None`: there is none.
    pub before: Option<Value>,
    /// The object afterwards.
    pub after: Value,
}

/// How objects are applied.
#[derive(Debug, Clone)]
pub struct ApplyOptions {
    /// The field manager.
    pub manager: String,
    /// Ask the API server for its verdict, and store nothing.
    pub dry_run: bool,
    /// Take over fields that another manager has set to another value.
    pub force: bool,
}

/// A kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectKind<'a> {
    /// Its group and version, such as `apps/v1`.
    pub api_version: &'a str,
    /// Its name.
    pub kind: &'a str,
}

/// Which objects of a kind are listed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection<'a> {
    /// The namespace; `None`: all.
    pub namespace: Option<&'a str>,
    /// A selector of labels; empty: all.
    pub labels: &'a str,
}

/// A token of a service account.
#[derive(Debug, Clone, Copy)]
pub struct TokenOf<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The service account.
    pub account: &'a str,
    /// The audience; empty: the API server itself.
    pub audience: &'a str,
    /// Its lifetime.
    pub seconds: i64,
}

/// The log of a container.
#[derive(Debug, Clone, Copy)]
pub struct LogsOf<'a> {
    /// The Pod's namespace.
    pub namespace: &'a str,
    /// The Pod.
    pub pod: &'a str,
    /// The container.
    pub container: &'a str,
    /// How many of the last lines.
    pub lines: i64,
    /// The log of the container before its last restart.
    pub previous: bool,
}

/// A right that a command needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission<'a> {
    /// The verb, such as `create`.
    pub verb: &'a str,
    /// The group of the resource.
    pub group: &'a str,
    /// Its name in the plural.
    pub resource: &'a str,
    /// The namespace; `None`: of the whole cluster.
    pub namespace: Option<&'a str>,
}

/// A cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster that the user means. Programs that the user's own file names may be run for credentials.
    pub async fn of(options: &ClusterOptions) -> Result<Self, ClientError> {
        Ok(Self { client: options.client(ExecPlugins::Run).await? })
    }

    /// Returns the version of the API server, such as `v1.37.1`.
    pub async fn version(&self) -> Result<String, ClusterError> {
        let version = self.client.apiserver_version().await;
        version.map(|version| version.git_version).map_err(|error| ClusterError::of("version".to_owned(), &error))
    }

    /// Returns what the API server's clock shows, to the second.
    pub async fn clock(&self) -> Result<Option<SystemTime>, ClusterError> {
        let failed = |error: &kube::Error| ClusterError::of("GET /version".to_owned(), error);
        let request = http::Request::get("/version").body(Body::empty());
        let request = request.map_err(|error| failed(&kube::Error::HttpError(error)))?;
        let answer = self.client.send(request).await.map_err(|error| failed(&error))?;
        let date = answer.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
        Ok(date.and_then(|date| httpdate::parse_http_date(date).ok()))
    }

    /// Applies an object by server-side apply.
    pub async fn apply(&self, object: &Value, options: &ApplyOptions) -> Result<Change, ClusterError> {
        Ok(match self.applied(object, options).await? {
            Applied { before: None, .. } => Change::Created,
            Applied { before: Some(before), after } if same(&before, &after) => Change::Unchanged,
            Applied { .. } => Change::Configured,
        })
    }

    /// Asks the API server what an application would change, and stores nothing; returns the object before and after it.
    pub async fn preview(&self, object: &Value, options: &ApplyOptions) -> Result<Preview, ClusterError> {
        let options = ApplyOptions { dry_run: true, ..options.clone() };
        let Applied { before, after } = self.applied(object, &options).await?;
        let kind = kind_of(object);
        Ok(Preview { before: before.map(|before| json(kind, before)), after: json(kind, after) })
    }

    async fn applied(&self, object: &Value, options: &ApplyOptions) -> Result<Applied, ClusterError> {
        let (kind, name) = (kind_of(object), text(object, "/metadata/name"));
        let api = self.api(kind, object.pointer("/metadata/namespace").and_then(Value::as_str));
        let failed = |error: &kube::Error| ClusterError::of(format!("{} {name}", kind.kind), error);
        let before = api.get_opt(name).await.map_err(|error| failed(&error))?;
        let mut parameters = PatchParams::apply(&options.manager);
        parameters.force = options.force;
        parameters.dry_run = options.dry_run;
        let after = api.patch(name, &parameters, &Patch::Apply(object)).await.map_err(|error| failed(&error))?;
        Ok(Applied { before, after })
    }

    /// Stores an object by server-side apply in a single call, which is what a loader of many objects needs.
    pub async fn store(&self, object: &Value, manager: &str) -> Result<(), ClusterError> {
        let (kind, name) = (kind_of(object), text(object, "/metadata/name"));
        let api = self.api(kind, object.pointer("/metadata/namespace").and_then(Value::as_str));
        let stored = api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(object)).await;
        stored.map(drop).map_err(|error| ClusterError::of(format!("{} {name}", kind.kind), &error))
    }

    /// Returns a page of the API server, such as `/metrics`.
    pub async fn page(&self, path: &str) -> Result<String, ClusterError> {
        let failed = |error: &kube::Error| ClusterError::of(format!("GET {path}"), error);
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| failed(&kube::Error::HttpError(error)))?;
        self.client.request_text(request).await.map_err(|error| failed(&error))
    }

    /// Returns an object; `None`: there is none, or its kind is not served.
    pub async fn get(
        &self,
        kind: ObjectKind<'_>,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<Value>, ClusterError> {
        let found = self.api(kind, namespace).get_opt(name).await;
        match found.map_err(|error| ClusterError::of(format!("{} {name}", kind.kind), &error)) {
            Ok(found) => Ok(found.map(|object| json(kind, object))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists objects; none if their kind is not served.
    pub async fn list(&self, kind: ObjectKind<'_>, selection: Selection<'_>) -> Result<Vec<Value>, ClusterError> {
        let api = self.api(kind, selection.namespace);
        let mut parameters = ListParams::default().labels(selection.labels).limit(PAGE);
        let mut listed = Vec::new();
        loop {
            let page = match api.list(&parameters).await {
                Ok(page) => page,
                Err(error) => {
                    let error = ClusterError::of(format!("list {}", kind.kind), &error);
                    return if error.is_not_found() { Ok(listed) } else { Err(error) };
                }
            };
            listed.extend(page.items.into_iter().map(|object| json(kind, object)));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(listed),
            }
        }
    }

    /// Deletes an object, and says whether there was one. What it owns is deleted in the background.
    pub async fn delete(&self, object: &Value) -> Result<bool, ClusterError> {
        let (kind, name) = (kind_of(object), text(object, "/metadata/name"));
        let api = self.api(kind, object.pointer("/metadata/namespace").and_then(Value::as_str));
        match api.delete(name, &DeleteParams::background()).await {
            Ok(_) => Ok(true),
            Err(error) => {
                let error = ClusterError::of(format!("delete {} {name}", kind.kind), &error);
                if error.is_not_found() { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Returns a token of a service account, by the TokenRequest API.
    pub async fn token(&self, of: &TokenOf<'_>) -> Result<String, ClusterError> {
        let spec = TokenRequestSpec {
            audiences: Some(vec![of.audience.to_owned()].into_iter().filter(|audience| !audience.is_empty()).collect()),
            expiration_seconds: Some(of.seconds),
            ..TokenRequestSpec::default()
        };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), of.namespace);
        let failed = |error: &kube::Error| ClusterError::of(format!("token of ServiceAccount {}", of.account), error);
        let response = api.create_token_request(of.account, &PostParams::default(), &request).await;
        let status = response.map_err(|error| failed(&error))?.status;
        Ok(status.and_then(|status| status.token).unwrap_or_default())
    }

    /// Returns the end of a container's log.
    pub async fn logs(&self, of: &LogsOf<'_>) -> Result<String, ClusterError> {
        let parameters = LogParams {
            container: Some(of.container.to_owned()),
            tail_lines: Some(of.lines),
            previous: of.previous,
            ..LogParams::default()
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), of.namespace);
        let log = api.logs(of.pod, &parameters).await;
        log.map_err(|error| ClusterError::of(format!("log of {} {}", of.pod, of.container), &error))
    }

    /// A port of a Pod, reached through the API server. Streams are opened by the present runtime.
    pub fn pod_port(&self, namespace: &str, pod: &str, port: u16) -> PodPort {
        PodPort::new(self.client.clone(), namespace, pod, port)
    }

    /// Whether the user has a right.
    pub async fn may(&self, permission: &Permission<'_>) -> Result<bool, ClusterError> {
        let attributes = ResourceAttributes {
            verb: Some(permission.verb.to_owned()),
            group: Some(permission.group.to_owned()),
            resource: Some(permission.resource.to_owned()),
            namespace: permission.namespace.map(str::to_owned),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| ClusterError::of("SelfSubjectAccessReview".to_owned(), &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    fn api(&self, kind: ObjectKind<'_>, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = kind.api_version.split_once('/').unwrap_or(("", kind.api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind.kind));
        match namespace.filter(|_| !CLUSTER_SCOPED.contains(&kind.kind)) {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn kind_of(object: &Value) -> ObjectKind<'_> {
    ObjectKind { api_version: text(object, "/apiVersion"), kind: text(object, "/kind") }
}

/// The object; those of a list do not name their kind.
fn json(kind: ObjectKind<'_>, object: DynamicObject) -> Value {
    let mut json = serde_json::to_value(object).unwrap_or_default();
    json["apiVersion"] = kind.api_version.into();
    json["kind"] = kind.kind.into();
    json
}

/// Whether an application has changed nothing but the record of who manages what.
fn same(before: &DynamicObject, after: &DynamicObject) -> bool {
    let plain = |object: &DynamicObject| {
        let mut object = object.clone();
        object.metadata.managed_fields = None;
        object.metadata.resource_version = None;
        object.metadata.generation = None;
        serde_json::to_value(object).unwrap_or_default()
    };
    plain(before) == plain(after)
}
