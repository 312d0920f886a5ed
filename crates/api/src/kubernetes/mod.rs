//! The Kubernetes kinds that the mesh reads.

mod config_map;
mod endpoint_slice;
mod env;
mod ingress;
mod namespace;
mod pod;
mod probe;
mod secret;
mod service;
mod volume;
mod workload;

pub use config_map::ConfigMap;
pub use endpoint_slice::{AddressType, EndpointConditions, EndpointPort, EndpointSlice, SliceEndpoint, TargetRef};
pub use env::{
    EnvFromSource, EnvVar, EnvVarSource, KeySelector, ObjectFieldSelector, ObjectReference, ResourceFieldSelector,
    ResourceRequirements,
};
pub use ingress::{
    Ingress, IngressBackend, IngressClass, IngressClassSpec, IngressHttp, IngressPath, IngressPort, IngressRule,
    IngressService, IngressSpec, IngressTls, PathType, ingress_host,
};
pub use namespace::{Namespace, ServiceAccount};
pub use pod::{
    Container, ContainerPort, Pod, PodCondition, PodIp, PodSecurityContext, PodSpec, PodStatus, SecurityContext,
    ServiceAccountName, TransportProtocol,
};
pub use probe::{
    ExecAction, GrpcAction, HttpGetAction, HttpHeader, Lifecycle, LifecycleHandler, Probe, SleepAction, TcpSocketAction,
};
pub use secret::{Bytes, Secret, Text};
pub use service::{
    ClusterIp, InternalTrafficPolicy, LoadBalancerIngress, LoadBalancerStatus, Service, ServicePort, ServiceSpec,
    ServiceStatus, ServiceType, TrafficDistribution,
};
pub use volume::{ConfigMapVolume, EmptyDir, FileMode, KeyToPath, SecretVolume, Volume, VolumeMount};
pub use workload::{
    DaemonSet, DaemonSetSpec, Deployment, DeploymentSpec, LabelSelector, PodManagementPolicy, PodTemplate,
    RUN_ANNOTATION, StatefulSet, StatefulSetSpec,
};
