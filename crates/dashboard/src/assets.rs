//! The files of the page, which are part of the program: a browser loads nothing from elsewhere.
//!
//! `assets/vendor` has the minified files of published packages; `scripts/dashboard-assets.sh` fetches them again and verifies that they
//! are the same.

/// A file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asset {
    /// Its path in URLs.
    pub(crate) path: &'static str,
    /// Its media type.
    pub(crate) content_type: &'static str,
    /// Its content.
    pub(crate) content: &'static [u8],
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";

const ASSETS: [Asset; 11] = [
    Asset { path: "/", content_type: "text/html; charset=utf-8", content: include_bytes!("../assets/index.html") },
    Asset { path: "/icon.svg", content_type: "image/svg+xml", content: include_bytes!("../assets/icon.svg") },
    Asset { path: "/style.css", content_type: CSS, content: include_bytes!("../assets/style.css") },
    Asset { path: "/app.js", content_type: JAVASCRIPT, content: include_bytes!("../assets/app.js") },
    Asset { path: "/dom.js", content_type: JAVASCRIPT, content: include_bytes!("../assets/dom.js") },
    Asset { path: "/picture.js", content_type: JAVASCRIPT, content: include_bytes!("../assets/picture.js") },
    Asset { path: "/panel.js", content_type: JAVASCRIPT, content: include_bytes!("../assets/panel.js") },
    Asset { path: "/tables.js", content_type: JAVASCRIPT, content: include_bytes!("../assets/tables.js") },
    Asset {
        path: "/vendor/dagre.js",
        content_type: JAVASCRIPT,
        content: include_bytes!("../assets/vendor/dagre.min.js"),
    },
    Asset {
        path: "/vendor/uplot.js",
        content_type: JAVASCRIPT,
        content: include_bytes!("../assets/vendor/uPlot.iife.min.js"),
    },
    Asset { path: "/vendor/uplot.css", content_type: CSS, content: include_bytes!("../assets/vendor/uPlot.min.css") },
];

/// The file with this path.
pub(crate) fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}
