//! by hand
use std::io::Write;
fn main() {
    let files: Vec<(std::sync::Arc<str>, std::sync::Arc<str>)> = std::env::args()
        .skip(1)
        .filter(|a| a != "-q")
        .map(|p| {
            let t = std::fs::read_to_string(&p).unwrap();
            (p.into(), t.into())
        })
        .collect();
    let t = std::time::Instant::now();
    let (objects, mut d) = evenkeel_api::load(&files);
    let t1 = t.elapsed();
    let (snapshot, e) = evenkeel_model::build(&objects, &Default::default(), &mut Default::default());
    let t2 = t.elapsed();
    d.extend(e);
    if std::env::args().any(|a| a == "-q") {
        d.retain(|d| d.severity != evenkeel_base::Severity::Info);
    }
    let sources = evenkeel_base::Sources::from_iter(files.iter().cloned());
    let mut out = std::io::stdout();
    let _ = write!(out, "{}", d.render(&sources, false));
    let _ = writeln!(out, "{} objects {} services; load {t1:?} all {t2:?}", objects.len(), snapshot.services.len());
}
