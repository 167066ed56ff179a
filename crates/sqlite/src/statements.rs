//! Which statements run on a connection, as SQLite reports them.
//!
//! SQLite calls us for every connection that is opened (`sqlite3_auto_extension`). If its main database is a file of ours that
//! wants to know of statements, we ask to be called when a statement begins and when it is over (`sqlite3_trace_v2`). Which tables and
//! indexes it uses is told by its own program: `EXPLAIN` lists the instructions that open a tree, with the page of its root.
//!
//! A connection has one such callback. An application that sets its own takes ours away, and then the policies know no more
//! queries, which all of them can do without.

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
/// Of an instruction that opens a tree.
const ROOT: c_int = 3;
const DATABASE: c_int = 4;

/// Instructions of one statement that are looked at, and trees that are noted, at most.
const INSTRUCTIONS_MAX: usize = 10_000;
const ROOTS_MAX: usize = 64;

/// The functions of the SQLite that we were registered with first, for one that hands over no table of them.
static FIRST: OnceLock<Api> = OnceLock::new();

/// Asks SQLite to call us for every connection that is opened from now on.
pub(crate) fn watch_connections(api: &Api) -> Outcome {
    FIRST.get_or_init(|| *api);
    // SAFETY: the function stays where it is: a library with it is never unloaded.
    Code::check(unsafe { (api.auto_extension)(Some(connected)) })
}

/// A connection was opened. That we may not get to know its statements is no reason to refuse it.
///
/// # Safety
/// For SQLite to call.
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
        // SAFETY: as above; the connection is just being opened.
        let api =
            unsafe { on_file(&api, connection, |handle, api| handle.wants_statements().then_some(api)) };
        let api = api.flatten()?;
        let events = ffi::SQLITE_TRACE_STMT | ffi::SQLITE_TRACE_PROFILE;
        // SAFETY: the connection is open; the functions that the callback is called with stay where they are.
        unsafe { (api.trace_v2?)(connection, events, Some(traced), ptr::from_ref(api).cast_mut().cast()) };
        Some(())
    };
    let _ = catch_unwind(AssertUnwindSafe(watch));
    ffi::SQLITE_OK
}

/// A statement begins, or is over.
///
/// # Safety
/// For SQLite to call, with the functions that [`connected`] has given it.
unsafe extern "C" fn traced(
    event: c_uint,
    api: *mut c_void,
    statement: *mut c_void,
    text: *mut c_void,
) -> c_int {
    let note = || {
        // SAFETY: the caller is SQLite, in a call to run or to end this statement.
        unsafe {
            let api = &*api.cast::<Api>();
            let address = statement as usize;
            let statement = statement.cast::<ffi::sqlite3_stmt>();
            let connection = (api.db_handle)(statement);
            if event == ffi::SQLITE_TRACE_PROFILE {
                on_file(api, connection, |handle, _| handle.statement_ends(address));
                return;
            }
            // A trigger of the statement is reported with another text, and is a part of the statement.
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

/// The roots of the tables and indexes of the main database that a statement uses, if SQLite explains it now.
///
/// # Safety
/// The connection is open, and its functions are `api`.
unsafe fn roots(api: &Api, connection: *mut ffi::sqlite3, text: &CStr) -> Roots {
    let Ok(explain) = CString::new([b"explain ", text.to_bytes()].concat()) else { return Roots::Untold };
    let mut roots = Vec::new();
    let mut statement = ptr::null_mut();
    // SAFETY: by the caller's word; the text is a C string, the statement is finalized below, and null is no statement.
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
            // Tables of other databases, temporary ones for instance, are in other files.
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
        // After a row, if there are more than are looked at.
        match code {
            ffi::SQLITE_OK | ffi::SQLITE_ROW | ffi::SQLITE_DONE => Roots::Told(roots),
            _ => Roots::Untold,
        }
    }
}

/// Does `act` with the file of a connection's main database, if it is one of ours.
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
        // SAFETY: by the caller's word; the argument is what the operation wants.
        unsafe { (api.file_control)(connection, c"main".as_ptr(), operation, argument) }
    };
    let code = control(ffi::SQLITE_FCNTL_FILE_POINTER, (&raw mut file).cast());
    // SAFETY: SQLite has said which file it is.
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
    use terrace_block::trace::{Event, Trace};

    use super::*;

    /// The explanation of a statement, which is longer than it, is longer than SQLite may take when it first runs.
    #[test]
    fn a_statement_that_could_not_be_explained_is_asked_about_when_it_runs_again() {
        crate::register(false).expect("SQLite takes the VFS");
        let place = tempfile::tempdir().expect("a temporary directory");
        let (path, trace) = (place.path().display(), place.path().join("x.pgt"));
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
