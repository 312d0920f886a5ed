//! `evenkeel proxy-config`: its subcommands, and which proxy answers those that print a page as it is.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::exec::{self, ContainerName, ExecOptions};

use super::{log, tables};
use crate::proxies::ProxiesChoice;
use crate::{admin, proxy_status};

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum ProxyConfig {
    /// Show connections, requests and busy time of each worker, and how uneven they are (max/mean).
    Workers(WorkersArguments),
    /// Print a page of a proxy's admin port, such as /stats or /config_dump.
    Page(PageArguments),
    /// Show the level of a proxy's log, or set it.
    Log(log::Log),
    #[command(flatten)]
    Table(tables::Table),
}

/// Flags of `evenkeel proxy-config page`.
#[derive(Debug, Args)]
pub struct PageArguments {
    /// The page's path, with its query.
    #[arg(value_name = "PATH")]
    page: String,

    /// A workload of the running mesh or of a cluster, or one of its pods [default: the proxy on this machine].
    workload: Option<String>,

    /// The workload's namespace; of a running mesh needed only if several namespaces have a workload of that name [default in a
    /// cluster: that of the context].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Admin port of the proxy [default: that of the workload; 127.0.0.1:15000 if its ProxyConfig names no other].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address)]
    admin: Option<SocketAddr>,

    /// Send what standard input has as the body of a POST request.
    #[arg(long)]
    post: bool,
}

/// Flags of `evenkeel proxy-config workers`.
#[derive(Debug, Args)]
pub struct WorkersArguments {
    /// A workload of the running mesh or of a cluster, or one of its pods, under any name that a command prints. Default: all
    /// proxies of the running mesh, or else the proxy on this machine.
    workload: Option<String>,

    /// The workload's namespace; of a running mesh needed only if several namespaces have a workload of that name [default in a
    /// cluster: that of the context].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Admin port of the proxy; without WORKLOAD, of a proxy on this machine [default: that of the workload; 127.0.0.1:15000 if
    /// its ProxyConfig names no other].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address)]
    admin: Option<SocketAddr>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = proxy_status::Output::Table)]
    output: proxy_status::Output,

    /// The same as `-o json`.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Runs a command and returns the exit status.
pub fn run(command: ProxyConfig) -> anyhow::Result<u8> {
    match command {
        ProxyConfig::Workers(arguments) => return workers(arguments),
        ProxyConfig::Page(arguments) => return page(arguments),
        ProxyConfig::Log(log) => super::log::run(&log, &mut io::stdout().lock())?,
        ProxyConfig::Table(table) => super::tables::run(&table, &mut io::stdout().lock())?,
    }
    Ok(0)
}

/// The proxy of a workload is asked from inside its network namespace, by another process of this program.
fn workers(arguments: WorkersArguments) -> anyhow::Result<u8> {
    let WorkersArguments { workload, namespace, cluster, state, admin, output, json } = arguments;
    let json = json || output == proxy_status::Output::Json;
    if workload.is_some() || cluster.is_given() {
        let choice = ProxiesChoice { admin, state: state.as_ref(), cluster: &cluster };
        if let Some(mesh) = choice.cluster_mesh()? {
            let wanted = workload.as_deref().unwrap_or_default();
            return super::workers_of_cluster(&mesh, wanted, namespace.as_deref(), json);
        }
    }
    let program = std::env::current_exe().context("finding this program")?;
    let Some(workload) = workload else {
        let asked = state.is_some() || namespace.is_some();
        let state = state.unwrap_or_else(StateDir::default_path);
        let running = admin.is_none().then(|| exec::list(&state, "", namespace.as_deref()));
        return match running {
            Some(Ok(replicas)) => super::of_all(&program, &state, &replicas, json),
            Some(Err(error)) if asked => Err(error.into()),
            _ => {
                super::workers(admin.unwrap_or_else(admin::default_proxy), json, &mut io::stdout().lock())?;
                Ok(0)
            }
        };
    };
    let mut command: Vec<OsString> = vec![program.into(), "proxy-config".into(), "workers".into()];
    command.extend(admin_option(admin));
    command.extend(json.then(|| "--json".into()));
    let state = state.unwrap_or_else(StateDir::default_path);
    Ok(exec::run(&ExecOptions { state, workload, namespace, container: ContainerName::Proxy, command })?)
}

/// An address that was given, for a command that runs beside the proxy; otherwise that one finds it itself.
fn admin_option(admin: Option<SocketAddr>) -> impl Iterator<Item = OsString> {
    admin.into_iter().flat_map(|admin| ["--admin".into(), admin.to_string().into()])
}

/// Fetches a page. Like [`workers`], it asks a workload's proxy from inside its network namespace.
fn page(arguments: PageArguments) -> anyhow::Result<u8> {
    let PageArguments { page, workload, namespace, cluster, state, admin, post } = arguments;
    let choice = ProxiesChoice { admin, state: state.as_ref(), cluster: &cluster };
    if let Some(wanted) = &workload
        && let Some(mesh) = choice.cluster_mesh()?
    {
        let address = mesh.first_proxy(wanted, namespace.as_deref())?;
        super::page(address, &page, post, &mut io::stdout().lock())?;
        return Ok(0);
    }
    anyhow::ensure!(!cluster.is_given(), "name a workload or a Pod of the cluster");
    let Some(workload) = workload else {
        super::page(admin.unwrap_or_else(admin::default_proxy), &page, post, &mut io::stdout().lock())?;
        return Ok(0);
    };
    let program = std::env::current_exe().context("finding this program")?;
    let mut command: Vec<OsString> = vec![program.into(), "proxy-config".into(), "page".into(), page.into()];
    command.extend(admin_option(admin));
    command.extend(post.then(|| "--post".into()));
    let state = state.unwrap_or_else(StateDir::default_path);
    Ok(exec::run(&ExecOptions { state, workload, namespace, container: ContainerName::Proxy, command })?)
}
