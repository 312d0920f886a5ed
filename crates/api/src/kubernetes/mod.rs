//! The few Kubernetes kinds that a mesh looks at.

mod config_map;
mod endpoint_slice;
mod namespace;
mod pod;
mod service;
mod workload;

pub use config_map::ConfigMap;
pub use endpoint_slice::{AddressType, EndpointConditions, EndpointPort, EndpointSlice, SliceEndpoint, TargetRef};
pub use namespace::{Namespace, ServiceAccount};
pub use pod::{
    Container, ContainerPort, EnvVar, HttpGetAction, Pod, PodCondition, PodIp, PodSpec, PodStatus, Probe,
    ServiceAccountName, TcpSocketAction, TransportProtocol,
};
pub use service::{ClusterIp, Service, ServicePort, ServiceSpec, ServiceType};
pub use workload::{Deployment, DeploymentSpec, LabelSelector, PodTemplate, RUN_ANNOTATION};
