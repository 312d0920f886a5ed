//! The subcommands of `evenkeel proxy-config` that show what a proxy runs, under istioctl's names.

use std::io::Write;

use serde_json::Value as Json;

use super::target::{Output, Shown, Target, print};
use super::{clusters, dump, endpoints, listeners, routes, secrets};

/// A kind of resources.
#[derive(Debug, clap::Subcommand)]
pub enum Table {
    /// Show the clusters of a proxy: the services that it can call, by port and subset.
    #[command(visible_alias = "cluster", alias = "c")]
    Clusters {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        filter: clusters::Filter,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the listeners of a proxy, and where each filter chain leads.
    #[command(visible_alias = "listener", alias = "l")]
    Listeners {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        filter: listeners::Filter,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the routes of a proxy, with the object that each was made of.
    #[command(visible_alias = "route", alias = "r")]
    Routes {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        filter: routes::Filter,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the endpoints of a proxy, and their health as it sees it.
    #[command(visible_alias = "endpoint", alias = "ep")]
    Endpoints {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        filter: endpoints::Filter,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the certificates and roots of a proxy; keys are never shown.
    #[command(visible_alias = "secret", alias = "s")]
    Secrets {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show the configurations of filters that a proxy has by ECDS.
    #[command(alias = "ec")]
    Ecds {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show what a proxy started with.
    #[command(alias = "b")]
    Bootstrap {
        #[command(flatten)]
        target: Target,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Json)]
        output: Output,
    },
    /// Show all of these tables; with `-o json` the proxy's whole configuration.
    #[command(alias = "a")]
    All {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        shown: Shown,
    },
}

/// What an empty table of a sidecar means.
const LEARNED: &str =
    "note: the proxy's scope is learned: what its workload has not called yet is not here (docs/scope.md)";

/// Says on standard error that a sidecar holds what its workload calls, and not the whole mesh.
fn note_learned_scope(page: &Json, shown: &Shown) {
    let scope = dump::bootstrap(page).and_then(|bootstrap| bootstrap.pointer("/node/metadata/EVENKEEL/SCOPE"));
    if shown.output == Output::Table && scope.and_then(Json::as_str) == Some("learned") {
        // Nobody reads it when this fails.
        let _ = writeln!(std::io::stderr(), "{LEARNED}");
    }
}

/// Prints a table.
pub fn run(table: &Table, out: &mut dyn Write) -> anyhow::Result<()> {
    match table {
        Table::Clusters { target, filter, shown } => {
            let page = target.page(dump::PAGE)?;
            note_learned_scope(&page, shown);
            print_clusters(&page, filter, shown, out)
        }
        Table::Listeners { target, filter, shown } => print_listeners(&target.page(dump::PAGE)?, filter, shown, out),
        Table::Routes { target, filter, shown } => {
            let page = target.page(dump::PAGE)?;
            note_learned_scope(&page, shown);
            print_routes(&page, filter, shown, out)
        }
        Table::Endpoints { target, filter, shown } => {
            print_endpoints(&target.page(endpoints::PAGE)?, filter, shown, out)
        }
        Table::Secrets { target, shown } => print_secrets(target, &target.page(dump::PAGE)?, shown, out),
        Table::Ecds { target, shown } => {
            let page = target.page(dump::PAGE)?;
            let configs = dump::resources(&page, dump::EXTENSIONS);
            let rows = configs.iter().map(|config| {
                [dump::text(config, "name").to_owned(), dump::text(&config["typed_config"], "@type").to_owned()]
            });
            print(shown, &configs, ["ECDS NAME", "TYPE"], rows, out)
        }
        Table::Bootstrap { target, output } => {
            let page = target.page(dump::PAGE)?;
            let bootstrap = dump::bootstrap(&page).cloned().unwrap_or_default();
            match output {
                Output::Json => writeln!(out, "{bootstrap:#}")?,
                Output::Yaml | Output::Table => writeln!(out, "{}", serde_saphyr::to_string(&bootstrap)?.trim_end())?,
            }
            Ok(())
        }
        Table::All { target, shown } => print_all(target, shown, out),
    }
}

fn print_all(target: &Target, shown: &Shown, out: &mut dyn Write) -> anyhow::Result<()> {
    let page = target.page(dump::PAGE)?;
    note_learned_scope(&page, shown);
    match shown.output {
        Output::Json => writeln!(out, "{page:#}")?,
        Output::Yaml => writeln!(out, "{}", serde_saphyr::to_string(&page)?.trim_end())?,
        Output::Table => {
            print_clusters(&page, &clusters::Filter::default(), shown, out)?;
            writeln!(out)?;
            print_listeners(&page, &listeners::Filter::default(), shown, out)?;
            writeln!(out)?;
            print_routes(&page, &routes::Filter::default(), shown, out)?;
            if !target.is_file() {
                writeln!(out)?;
                print_endpoints(&target.page(endpoints::PAGE)?, &endpoints::Filter::default(), shown, out)?;
            }
            writeln!(out)?;
            print_secrets(target, &page, shown, out)?;
        }
    }
    Ok(())
}

fn print_clusters(page: &Json, filter: &clusters::Filter, shown: &Shown, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut matching = dump::resources(page, dump::CLUSTERS);
    matching.retain(|cluster| filter.keeps(cluster));
    matching.sort_by_key(|cluster| clusters::row(cluster));
    print(shown, &matching, clusters::COLUMNS, matching.iter().map(|cluster| clusters::row(cluster)), out)
}

fn print_listeners(page: &Json, filter: &listeners::Filter, shown: &Shown, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut matching = dump::resources(page, dump::LISTENERS);
    matching.extend(dump::resources(page, dump::STATIC_LISTENERS));
    matching.retain(|listener| filter.keeps(listener));
    print(shown, &matching, listeners::COLUMNS, matching.iter().flat_map(|listener| listeners::rows(listener)), out)
}

fn print_routes(page: &Json, filter: &routes::Filter, shown: &Shown, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut matching = dump::resources(page, dump::ROUTES);
    matching.retain(|config| filter.keeps(config));
    print(shown, &matching, routes::COLUMNS, matching.iter().flat_map(|config| routes::rows(config)), out)
}

fn print_endpoints(page: &Json, filter: &endpoints::Filter, shown: &Shown, out: &mut dyn Write) -> anyhow::Result<()> {
    let (resources, rows): (Vec<Json>, Vec<_>) = endpoints::endpoints(page, filter).into_iter().unzip();
    print(shown, &resources.iter().collect::<Vec<_>>(), endpoints::COLUMNS, rows, out)
}

fn print_secrets(target: &Target, page: &Json, shown: &Shown, out: &mut dyn Write) -> anyhow::Result<()> {
    let active = dump::resources(page, dump::SECRETS);
    let warming = dump::resources(page, dump::WARMING_SECRETS);
    let certificates = if target.is_file() { Json::Null } else { target.page(secrets::PAGE)? };
    let mut rows = secrets::rows(&active, "ACTIVE", &certificates);
    rows.extend(secrets::rows(&warming, "WARMING", &certificates));
    let all: Vec<&Json> = active.into_iter().chain(warming).collect();
    print(shown, &all, secrets::COLUMNS, rows, out)
}
