//! Typed tables: order and round trip of keys, values, and bytes that do not fit.

use std::fmt::Debug;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use terrace::{AsKey, AsValue, Db, Error, Key, MemoryDirectory, Postcard, TypedTable, Value};

use super::common;

fn open() -> Db {
    common::builder().directory(Arc::new(MemoryDirectory::new())).dram(4 << 20).open("").unwrap()
}

fn encoded<K: Key>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    AsKey::<K>::encode(key, &mut bytes);
    bytes
}

/// The bytes compare as the keys do, and say the key again, alone and as a member of a tuple.
fn check_keys<K: Key + Ord + Clone + Debug>(one: &K, other: &K) {
    let bytes = encoded(one);
    assert_eq!(bytes.cmp(&encoded(other)), one.cmp(other), "{one:?} {other:?}");
    assert_eq!(K::decode(&bytes).as_ref(), Ok(one));
    let (pair, next) = ((one.clone(), 7u8, one.clone()), (other.clone(), 6u8, one.clone()));
    assert_eq!(encoded(&pair).cmp(&encoded(&next)), pair.cmp(&next), "{pair:?} {next:?}");
    assert_eq!(<(K, u8, K)>::decode(&encoded(&pair)), Ok(pair));
}

macro_rules! number_tests {
    ($($name:ident: $type:ty,)*) => {
        proptest! { $(
            #[test]
            fn $name(one: $type, other: $type) {
                check_keys(&one, &other);
                for end in [<$type>::MIN, <$type>::MAX, 0] {
                    check_keys(&one, &end);
                }
                check_keys(&one, &one.wrapping_add(1));
                let mut bytes = Vec::new();
                AsValue::<$type>::encode(&one, &mut bytes).unwrap();
                assert_eq!(<$type as Value>::decode(&bytes), Ok(one));
                bytes.push(0);
                assert!(<$type as Value>::decode(&bytes).is_err());
            }
        )* }
    };
}

number_tests! {
    keys_of_u8: u8, keys_of_u16: u16, keys_of_u32: u32, keys_of_u64: u64, keys_of_u128: u128,
    keys_of_i16: i16, keys_of_i32: i32, keys_of_i64: i64, keys_of_i128: i128,
}

/// Few different bytes, so that equal beginnings and zeros are frequent.
fn short_bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(0u8), Just(1), Just(254), Just(255)], 0..6)
}

fn short_text() -> impl Strategy<Value = String> {
    vec(prop_oneof![Just('\0'), Just('\u{1}'), Just('a'), Just('\u{ff}'), Just('\u{10ffff}')], 0..5)
        .prop_map(String::from_iter)
}

proptest! {
    #[test]
    fn keys_of_i8_bool_and_char(one: (i8, bool, char), other: (i8, bool, char)) {
        check_keys(&one.0, &other.0);
        check_keys(&one.1, &other.1);
        check_keys(&one.2, &other.2);
        check_keys(&one, &other);
    }

    #[test]
    fn keys_of_bytes_and_strings(
        one in (short_bytes(), short_text(), any::<String>()),
        other in (short_bytes(), short_text(), any::<String>()),
    ) {
        check_keys(&one.0, &other.0);
        check_keys(&one.1, &other.1);
        check_keys(&one.2, &other.2);
        check_keys(&one, &other);
    }

    #[test]
    fn keys_of_arrays_and_nested_tuples(
        one: [u8; 3], other: [u8; 3],
        a in (short_text(), any::<i32>(), (short_bytes(), any::<u8>())),
        b in (short_text(), any::<i32>(), (short_bytes(), any::<u8>())),
    ) {
        check_keys(&one, &other);
        check_keys(&a, &b);
        let six = |end: i16| (one, a.0.clone(), a.1, a.2.clone(), true, end);
        check_keys(&six(-1), &six(1));
        check_keys(&(one, 1u8, a.0.clone(), 'c', a.1), &(other, 1u8, b.0.clone(), 'c', b.1));
    }

    #[test]
    fn random_bytes_never_panic_and_fit_only_as_they_were_encoded(bytes in prop_oneof![vec(any::<u8>(), 0..40), short_bytes()]) {
        fn fits<K: Key + Debug>(bytes: &[u8]) {
            if let Ok(key) = K::decode(bytes) {
                assert_eq!(encoded(&key), bytes, "{key:?}");
            }
        }
        fits::<u8>(&bytes);
        fits::<i128>(&bytes);
        fits::<bool>(&bytes);
        fits::<char>(&bytes);
        fits::<String>(&bytes);
        fits::<Vec<u8>>(&bytes);
        fits::<[u8; 4]>(&bytes);
        fits::<(Vec<u8>, bool)>(&bytes);
        fits::<(String, char, Vec<u8>)>(&bytes);
        fits::<(bool, (u16, String), [u8; 2], i8)>(&bytes);
        let _ = (<String as Value>::decode(&bytes), <u64 as Value>::decode(&bytes), <() as Value>::decode(&bytes));
        let _ = Postcard::<User>::decode(&bytes);
        let _ = Postcard::<Vec<Vec<String>>>::decode(&bytes);
    }
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct User {
    name: String,
    logins: Option<u32>,
    groups: Vec<String>,
}

/// A typed table has the entries of its table of bytes, in a transaction and a snapshot, too.
#[test]
fn a_typed_table_does_what_its_table_does() {
    let db = open();
    let table: TypedTable<(String, i64), String> = db.create_table("t").unwrap().typed();
    for (name, number) in [("b", -1), ("a", 5), ("a", -5), ("b\0", 2), ("", 0)] {
        table.put((name, number), format!("{name}{number}")).unwrap();
    }
    let key = |name: &str, number| (name.to_owned(), number);
    let keys: Vec<_> = table.iter().map(|entry| entry.unwrap().0).collect();
    assert_eq!(keys, [key("", 0), key("a", -5), key("a", 5), key("b", -1), key("b\0", 2)]);
    assert_eq!(table.prefix(("b",)).count(), 1, "not of the name that begins with it");
    assert_eq!(table.get(("a", 5)).unwrap().as_deref(), Some("a5"));
    assert_eq!(table.get_many([("x", 1), ("a", -5)]).unwrap(), [None, Some("a-5".to_owned())]);
    assert_eq!(table.range(("a", 0)..=("b", i64::MAX)).rev().count(), 2);
    assert_eq!(table.first().unwrap().unwrap().0, key("", 0));
    assert_eq!(table.last().unwrap().unwrap(), (key("b\0", 2), "b\x002".to_owned()));
    let snapshot = db.snapshot();
    db.update(|transaction| {
        let inside = table.within(transaction);
        for entry in inside.prefix(("a",)) {
            let ((name, number), value) = entry?;
            inside.put((name, -number * 2), value + "!")?;
        }
        assert_eq!(inside.take(("", 0))?.as_deref(), Some("0"));
        assert_eq!(inside.replace(("b", -1), "new")?.as_deref(), Some("b-1"));
        assert!(inside.delete(("b\0", 2))? && !inside.contains(("b\0", 2))?);
        assert_eq!(inside.first()?.unwrap().0, key("a", -10));
        assert_eq!(inside.last()?.unwrap(), (key("b", -1), "new".to_owned()));
        assert_eq!(inside.get_many([("a", -10)])?, [Some("a5!".to_owned())]);
        assert_eq!(inside.range(("a", 0)..("b", 0)).count(), 3);
        assert_eq!(inside.delete_range(("a", -5)..=("a", 5))?, 2);
        Ok::<_, Error>(())
    })
    .unwrap();
    let then = table.at(&snapshot);
    assert_eq!((then.iter().count(), table.len().unwrap()), (5, 3));
    assert_eq!(then.get(("b", -1)).unwrap().as_deref(), Some("b-1"));
    assert_eq!(then.prefix(("a",)).count() + then.range(("a", 0)..).count(), 2 + 3);
    assert_eq!(
        (then.first().unwrap().unwrap().0, then.last().unwrap().unwrap().0),
        (key("", 0), key("b\0", 2))
    );
    assert!(then.contains(("a", 5)).unwrap() && !table.contains(("a", 5)).unwrap());
    table.update(("n", 1), |old| Some(old.unwrap_or_default() + "x")).unwrap();
    table.update(("n", 1), |old| Some(old.unwrap_or_default() + "x")).unwrap();
    assert_eq!(table.replace(("n", 1), "y").unwrap().as_deref(), Some("xx"));
    assert_eq!(table.take(("n", 1)).unwrap().as_deref(), Some("y"));
    assert!(table.delete(("b", -1)).unwrap() && !table.is_empty().unwrap());
    assert_eq!(table.delete_range(("", 0)..).unwrap(), 2);
}

#[test]
fn strings_bytes_and_numbers_alone_are_as_in_a_table_of_bytes() {
    let db = open();
    let names: TypedTable<String, u32> = db.create_table("names").unwrap().typed();
    names.put("ada", 1).unwrap();
    names.put(String::from("adam"), 2).unwrap();
    assert_eq!(names.table().get("ada").unwrap().as_deref(), Some(&[1, 0, 0, 0][..]));
    assert_eq!(names.prefix("ada").map(|entry| entry.unwrap().1).sum::<u32>(), 3);
    let numbers: TypedTable<u16, Vec<u8>> = db.create_table("numbers").unwrap().typed();
    numbers.put(258, [7, 8]).unwrap();
    numbers.put(3, "text").unwrap();
    assert_eq!(numbers.table().get([1, 2]).unwrap(), Some(vec![7, 8]));
    assert_eq!(numbers.range(4..).count(), 1);
    let set: TypedTable<Vec<u8>, ()> = db.create_table("set").unwrap().typed();
    set.put([0, 1], ()).unwrap();
    assert_eq!(set.get([0, 1]).unwrap(), Some(()));
}

#[test]
fn values_of_serde_come_back() {
    let db = open();
    let users: TypedTable<u64, Postcard<User>> = db.create_table("users").unwrap().typed();
    let groups = (0..2000).map(|number| format!("group {number}")).collect();
    for user in [
        User { name: "Ada".to_owned(), logins: None, groups: Vec::new() },
        User { name: "Ben".to_owned(), logins: Some(3), groups },
    ] {
        users.put(7, &user).unwrap();
        assert_eq!(users.get(7).unwrap(), Some(user.clone()));
        assert_eq!(users.iter().next().unwrap().unwrap(), (7, user));
    }
}

#[test]
fn bytes_that_do_not_fit_are_an_error_that_names_the_table() {
    let db = open();
    let table = db.create_table("people").unwrap();
    table.put("ab", [0xff]).unwrap();
    table.put("abcd", 9u32.to_le_bytes()).unwrap();
    let message = |error: Error| {
        assert!(matches!(error, Error::Codec { .. }) && !error.is_retryable(), "{error}");
        error.to_string()
    };
    let texts: TypedTable<String, String> = table.typed();
    let refused = message(texts.get("ab").unwrap_err());
    assert!(refused.contains("\"people\"") && refused.contains("a value: invalid utf-8"), "{refused}");
    let numbers: TypedTable<u32, u32> = table.typed();
    let mut entries = numbers.iter();
    let refused = message(entries.next().unwrap().unwrap_err());
    assert_eq!(entries.next().unwrap().unwrap(), (u32::from_be_bytes(*b"abcd"), 9));
    assert!(refused.contains("a key: 2 bytes instead of 4"), "{refused}");
    let users: TypedTable<String, Postcard<User>> = table.typed();
    message(users.get("abcd").unwrap_err());
    message(users.update("ab", |user| user).unwrap_err());
    let error = db.update(|transaction| users.within(transaction).take("ab").map(drop)).unwrap_err();
    message(error);
    assert_eq!(table.len().unwrap(), 2, "the transaction was rolled back");
    let long = "x".repeat(terrace::MAX_KEY_BYTES + 1);
    assert!(matches!(texts.put(&long, ""), Err(Error::KeyTooLarge { .. })));
}

/// A type that postcard cannot encode: its length is unknown.
struct Endless;

impl Serialize for Endless {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;
        serializer.serialize_seq(None)?.end()
    }
}

impl<'de> Deserialize<'de> for Endless {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Ok(Endless)
    }
}

#[test]
fn a_value_without_an_encoding_is_refused_and_changes_nothing() {
    let db = open();
    let table: TypedTable<u8, Postcard<Endless>> = db.create_table("t").unwrap().typed();
    let refused = table.put(1, &Endless).unwrap_err();
    assert!(matches!(&refused, Error::Codec { what, .. } if what.contains("a value to store")), "{refused}");
    assert!(table.is_empty().unwrap());
}
