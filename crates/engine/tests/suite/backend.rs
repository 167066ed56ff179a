//! The back end setting, which overrides that of the environment.

use std::process::Command;

use terrace::{Backend, Builder, Db, Error, Mode};

/// Set in the process that runs [`child`].
const CHILD: &str = "TERRACE_BACKEND_CHILD";

fn builder() -> Builder {
    Db::builder().dram(4 << 20)
}

/// Opens and repairs while the environment names an unknown back end; otherwise does nothing.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    // The library reads no environment by itself.
    assert_eq!(
        builder().mode(Mode::Inline).open(folder.path().join("other")).unwrap().stats().backend,
        Backend::Frames
    );
    let refused = builder().defaults_from(|name| std::env::var(name).ok()).unwrap_err();
    assert!(matches!(&refused, Error::Config(what) if what.contains("TERRACE_BACKEND")), "{refused}");
    for (number, backend) in Backend::ALL.into_iter().enumerate() {
        let db = builder().backend(backend).open(&path).unwrap();
        assert_eq!(db.stats().backend, backend);
        let table = if number == 0 { db.create_table("t") } else { db.open_table("t") }.unwrap();
        assert_eq!(table.len().unwrap(), number as u64);
        table.put([number as u8], "it").unwrap();
        drop((table, db));
        let read_only = builder().backend(backend).read_only(true).open(&path).unwrap();
        assert_eq!(read_only.stats().backend, backend);
        drop(read_only);
        let report = builder().backend(backend).repair(&path, folder.path().join(backend.name())).unwrap();
        assert_eq!(report.tables.len(), 1, "{report:?}");
    }
}

#[test]
fn what_the_environment_says_counts_only_where_nothing_else_is_said() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["backend::child", "--exact", "--test-threads=1"])
        .env(CHILD, "1")
        .env("TERRACE_BACKEND", "neither");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
