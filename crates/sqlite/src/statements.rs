//! Reports of the statements that run on a connection.
//!
//! SQLite calls us for each new connection (`sqlite3_auto_extension`). If a file of ours wants
//! statements, we register for their begin and end (`sqlite3_trace_v2`). `EXPLAIN` tells which
//! tables and indexes a statement uses: it lists the instructions that open a tree, with its root
//! page.
//!
//! A connection has one trace callback. If the application sets its own, the policies get no more
//! queries, and work without them.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;

use libsqlite3_sys as ffi;

use crate::api::Api;
use crate::code::{Code, Outcome};
use crate::file::{Call, File, Handle};
use crate::queries::Roots;

/// Columns of `EXPLAIN`.
const OPCODE: c_int = 1;
/// Columns of an instruction that opens a tree.
const ROOT: c_int = 3;
const DATABASE: c_int = 4;

/// Limits per statement: instructions read, and trees noted.
const INSTRUCTIONS_MAX: usize = 10_000;
const ROOTS_MAX: usize = 64;

/// Functions of the first SQLite registered with, for one that passes no table.
static FIRST: OnceLock<Api> = OnceLock::new();

/// Asks SQLite to call us for every new connection.
pub(crate) fn watch_connections(api: &Api) -> Outcome {
    FIRST.get_or_init(|| *api);
    // SAFETY: the function stays valid, because the library is never unloaded.
    Code::check(unsafe { (api.auto_extension)(Some(connected)) })
}

/// Called for a new connection; never refuses it.
///
/// # Safety
/// Only SQLite may call it.
unsafe extern "C" fn connected(
    connection: *mut ffi::sqlite3,
    _message: *mut *mut c_char,
    routines: *const ffi::sqlite3_api_routines,
) -> c_int {
    let watch = || {
        let api = match routines.is_null() {
            true => *FIRST.get()?,
            // SAFETY: the caller is SQLite.
            false => unsafe { Api::of(routines) }.ok()?,
        };
        // SAFETY: as above; the connection is being opened.
        let api =
            unsafe { on_file(&api, connection, |handle, api| handle.wants_statements().then_some(api)) };
        let api = api.flatten()?;
        let events = ffi::SQLITE_TRACE_STMT | ffi::SQLITE_TRACE_PROFILE;
        // SAFETY: the connection is open; the functions that the callback gets stay valid.
        unsafe { (api.trace_v2?)(connection, events, Some(traced), ptr::from_ref(api).cast_mut().cast()) };
        Some(())
    };
    let _ = catch_unwind(AssertUnwindSafe(watch));
    ffi::SQLITE_OK
}

/// Called when a statement begins or ends.
///
/// # Safety
/// Only SQLite may call it, with the functions that [`connected`] registered.
unsafe extern "C" fn traced(
    event: c_uint,
    api: *mut c_void,
    statement: *mut c_void,
    text: *mut c_void,
) -> c_int {
    let note = || {
        // SAFETY: the caller is SQLite, while it runs or ends this statement.
        unsafe {
            let api = &*api.cast::<Api>();
            let address = statement as usize;
            let statement = statement.cast::<ffi::sqlite3_stmt>();
            let connection = (api.db_handle)(statement);
            if event == ffi::SQLITE_TRACE_PROFILE {
                on_file(api, connection, |handle, _| handle.statement_ends(address));
                return;
            }
            // A trigger has another text and counts as part of its statement.
            let own = (api.sql)(statement);
            if own.is_null() || !ptr::eq(own, text.cast()) {
                return;
            }
            let own = CStr::from_ptr(own);
            let text = own.to_string_lossy();
            let is_known = on_file(api, connection, |handle, _| handle.knows_statement(&text));
            let roots = match is_known {
                Some(false) => roots(api, connection, own),
                _ => Roots::Known,
            };
            on_file(api, connection, |handle, _| handle.statement_begins(address, &text, roots));
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(note));
    0
}

/// Root pages that a statement uses in the main database.
///
/// # Safety
/// The connection is open, and its functions are `api`.
unsafe fn roots(api: &Api, connection: *mut ffi::sqlite3, text: &CStr) -> Roots {
    let Ok(explain) = CString::new([b"explain ", text.to_bytes()].concat()) else { return Roots::Untold };
    let mut roots = Vec::new();
    let mut statement = ptr::null_mut();
    // SAFETY: guaranteed by the caller; the text is a C string, a null statement is not used, and
    // the statement is finalized below.
    unsafe {
        let mut code = (api.prepare_v2)(connection, explain.as_ptr(), -1, &mut statement, ptr::null_mut());
        for _ in 0..INSTRUCTIONS_MAX {
            if statement.is_null() {
                break;
            }
            code = (api.step)(statement);
            if code != ffi::SQLITE_ROW {
                break;
            }
            let name = (api.column_text)(statement, OPCODE);
            let opens_tree = !name.is_null()
                && matches!(
                    CStr::from_ptr(name.cast()).to_bytes(),
                    b"OpenRead" | b"OpenWrite" | b"ReopenIdx"
                );
            // Other databases, such as temporary tables, are other files.
            if !opens_tree || (api.column_int)(statement, DATABASE) != 0 {
                continue;
            }
            if let Ok(root) = u32::try_from((api.column_int)(statement, ROOT))
                && root != 0
                && !roots.contains(&root)
                && roots.len() < ROOTS_MAX
            {
                roots.push(root);
            }
        }
        (api.finalize)(statement);
        // A row comes last if the program is longer than the limit.
        match code {
            ffi::SQLITE_OK | ffi::SQLITE_ROW | ffi::SQLITE_DONE => Roots::Told(roots),
            _ => Roots::Untold,
        }
    }
}

/// Runs `act` on the connection's main database file, if ours.
///
/// # Safety
/// The connection is open, and its functions are `api`.
unsafe fn on_file<T>(
    api: &Api,
    connection: *mut ffi::sqlite3,
    act: impl FnOnce(&mut dyn Handle, &'static Api) -> T,
) -> Option<T> {
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    let control = |operation: c_int, argument: *mut c_void| {
        // SAFETY: guaranteed by the caller; each operation gets the argument that it expects.
        unsafe { (api.file_control)(connection, c"main".as_ptr(), operation, argument) }
    };
    let code = control(ffi::SQLITE_FCNTL_FILE_POINTER, (&raw mut file).cast());
    // SAFETY: SQLite returned this file.
    if code != ffi::SQLITE_OK || !unsafe { File::is_ours(file) } {
        return None;
    }
    let (mut act, mut outcome) = (Some(act), None);
    let mut once = |handle: &mut dyn Handle, api: &'static Api| {
        outcome = act.take().map(|act| act(handle, api));
    };
    let mut call: Call<'_> = &mut once;
    control(File::CALL, (&raw mut call).cast());
    outcome
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use terrace_cache::trace::{Event, Trace};

    use super::*;

    /// The `EXPLAIN` text is longer than its statement, and too long for SQLite at first.
    #[test]
    fn a_statement_that_could_not_be_explained_is_asked_about_when_it_runs_again() {
        crate::register(false).expect("SQLite takes the VFS");
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (path, trace) = (folder.path().display(), folder.path().join("x.pgt"));
        let db =
            Connection::open(format!("file:{path}/x.db?vfs=terrace&trace={path}/x.pgt")).expect("it opens");
        db.execute_batch("create table t(a)").expect("a table");
        let text = "select a from t";
        let mut statement = db.prepare(text).expect("a statement");
        for length_max in [text.len() as i32, 1_000_000, 1_000_000] {
            // SAFETY: the connection is open.
            unsafe { ffi::sqlite3_limit(db.handle(), ffi::SQLITE_LIMIT_SQL_LENGTH, length_max) };
            assert!(!statement.exists([]).expect("it runs"));
        }
        drop(statement);
        drop(db);
        let queries = Trace::open(&trace, None, 4096).expect("it is there").filter_map(|event| {
            match event.expect("it is well formed") {
                Event::Query(query) if query.template.starts_with("select") => Some(query.relations),
                _ => None,
            }
        });
        assert_eq!(queries.map(|relations| relations.len()).collect::<Vec<_>>(), [0, 1, 1]);
    }
}
