//! Commands that ask or change a cluster with the user's own rights: installation, revision tags, checks.

pub mod check;
mod injector;
mod install;
mod object;
pub mod observe;
mod progress;
mod remote;
mod tag;
mod uninstall;
mod upgrade;

use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, Subcommand};
use evenkeel_install::crds;
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::Cluster;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Install the control plane into a cluster, or upgrade it, and wait until it works.
    #[command(after_help = install::EXAMPLES)]
    Install(Box<install::InstallArguments>),
    /// Upgrade an installed control plane to this program's version, in place or as a further revision, after a preview.
    #[command(after_help = upgrade::EXAMPLES)]
    Upgrade(Box<upgrade::UpgradeArguments>),
    /// Remove what `install` has created.
    Uninstall(uninstall::UninstallArguments),
    /// Check a cluster before (`--pre`) or after the installation.
    #[command(after_help = check::EXAMPLES)]
    Check(check::CheckArguments),
    /// Name revisions of the control plane, so that namespaces need no new label at an upgrade.
    #[command(subcommand)]
    Tag(tag::TagCommand),
    /// Show which injector the API server calls for a workload, and why not the others.
    CheckInject(injector::CheckInjectArguments),
    /// Show the injectors of a cluster.
    #[command(subcommand)]
    Injector(injector::InjectorCommand),
    /// Print the Secret by which the control planes of other clusters read this cluster's endpoints.
    #[command(after_help = remote::EXAMPLES)]
    CreateRemoteSecret(remote::CreateArguments),
    /// Show the remote clusters that the control plane reads, and how far it is with each.
    RemoteClusters(remote::ListArguments),
    /// Print the custom resource definitions of Istio's kinds, for `kubectl apply --server-side -f -`.
    Crds,
}

/// Which cluster, and which control plane in it.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Namespace of the control plane.
    #[arg(short, long, value_name = "NAME", default_value = "istio-system")]
    namespace: String,

    /// Revision of the control plane [default: the default one].
    #[arg(long, value_name = "NAME")]
    revision: Option<String>,

    #[command(flatten)]
    cluster: ClusterOptions,
}

impl Target {
    /// Namespace of the control plane.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Which cluster.
    pub fn options(&self) -> &ClusterOptions {
        &self.cluster
    }

    /// The revision's name; empty: the default one.
    fn revision(&self) -> &str {
        self.revision.as_deref().filter(|revision| *revision != "default").unwrap_or_default()
    }

    /// The revision as labels name it.
    fn label(&self) -> &str {
        if self.revision().is_empty() { "default" } else { self.revision() }
    }
}

/// Runs a command and returns the exit status.
pub fn run(command: &ClusterCommand) -> anyhow::Result<u8> {
    let out = &mut io::stdout().lock();
    match command {
        ClusterCommand::Install(arguments) => block_on(install::run(arguments, out))?,
        ClusterCommand::Upgrade(arguments) => block_on(upgrade::run(arguments, out))?,
        ClusterCommand::Uninstall(arguments) => block_on(uninstall::run(arguments, out))?,
        ClusterCommand::Check(arguments) => block_on(check::run(arguments, out))?,
        ClusterCommand::Tag(command) => block_on(tag::run(command, out))?,
        ClusterCommand::CheckInject(arguments) => block_on(injector::check(arguments, out))?,
        ClusterCommand::Injector(command) => block_on(injector::list(command, out))?,
        ClusterCommand::CreateRemoteSecret(arguments) => block_on(remote::create(arguments, out))?,
        ClusterCommand::RemoteClusters(arguments) => remote::list(arguments, out),
        ClusterCommand::Crds => {
            for definition in crds::definitions() {
                writeln!(out, "---\n{}", serde_saphyr::to_string(&definition)?.trim_end())?;
            }
            Ok(0)
        }
    }
}

pub fn block_on<F: Future>(future: F) -> anyhow::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.context("cannot start the event loop")?.block_on(future))
}

async fn connect(options: &ClusterOptions) -> anyhow::Result<Cluster> {
    Ok(Cluster::of(options).await?)
}
