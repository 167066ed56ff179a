//! Values of typed tables.

use super::keys::Misfit;

/// The form in which a table stores its values; see [`TypedTable`](crate::TypedTable).
///
/// `Vec<u8>` and `String` store their bytes, integers little-endian bytes, `()` none. With the
/// feature `serde`, `Postcard<T>` stores any type that serde knows.
pub trait Value {
    /// The type of the values.
    type Owned;

    /// The value of these bytes.
    ///
    /// # Errors
    /// What does not fit.
    fn decode(bytes: &[u8]) -> Result<Self::Owned, Misfit>;
}

/// A value that a table with values `V` can store: `&str` for `String`, `&T` for `T`.
pub trait AsValue<V> {
    /// Appends the encoding.
    ///
    /// # Errors
    /// Why the value has none; only `Postcard` fails.
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit>;
}

macro_rules! values_of_bytes {
    ($($form:ty: $($given:ty),+;)*) => { $($(
        impl AsValue<$form> for $given {
            fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
                bytes.extend_from_slice(self.as_ref());
                Ok(())
            }
        }
    )+)* };
}

values_of_bytes! {
    Vec<u8>: Vec<u8>, &Vec<u8>, &[u8], &str;
    String: String, &String, &str;
}

impl<const N: usize> AsValue<Vec<u8>> for [u8; N] {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
        bytes.extend_from_slice(self);
        Ok(())
    }
}

impl<const N: usize> AsValue<Vec<u8>> for &[u8; N] {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
        bytes.extend_from_slice(&self[..]);
        Ok(())
    }
}

impl Value for Vec<u8> {
    type Owned = Vec<u8>;

    fn decode(bytes: &[u8]) -> Result<Vec<u8>, Misfit> {
        Ok(bytes.to_vec())
    }
}

impl Value for String {
    type Owned = String;

    fn decode(bytes: &[u8]) -> Result<String, Misfit> {
        str::from_utf8(bytes).map(str::to_owned).map_err(|error| error.to_string())
    }
}

impl AsValue<()> for () {
    fn encode(&self, _bytes: &mut Vec<u8>) -> Result<(), Misfit> {
        Ok(())
    }
}

impl Value for () {
    type Owned = ();

    fn decode(bytes: &[u8]) -> Result<(), Misfit> {
        match bytes.len() {
            0 => Ok(()),
            more => Err(format!("{more} bytes instead of none")),
        }
    }
}

macro_rules! integer_values {
    ($($integer:ty)*) => { $(
        impl AsValue<$integer> for $integer {
            fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
                bytes.extend_from_slice(&self.to_le_bytes());
                Ok(())
            }
        }

        impl AsValue<$integer> for &$integer {
            fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
                AsValue::<$integer>::encode(*self, bytes)
            }
        }

        impl Value for $integer {
            type Owned = $integer;

            fn decode(bytes: &[u8]) -> Result<$integer, Misfit> {
                let exact = bytes.try_into();
                let exact = exact.map_err(|_| format!("{} bytes instead of {}", bytes.len(), size_of::<$integer>()));
                exact.map(<$integer>::from_le_bytes)
            }
        }
    )* };
}

integer_values! { u8 i8 u16 i16 u32 i32 u64 i64 u128 i128 }

/// Values of any type that serde knows, in the binary format [postcard](https://docs.rs/postcard).
///
/// The format stores no names: a field that is added, removed or moved changes it.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use terrace::{Db, MemoryDirectory, Postcard, TypedTable};
///
/// #[derive(Debug, Deserialize, PartialEq, Serialize)]
/// struct User {
///     name: String,
///     logins: u32,
/// }
///
/// # let directory = std::sync::Arc::new(MemoryDirectory::new());
/// let db = Db::builder().directory(directory).dram(4 << 20).open("")?;
/// let users: TypedTable<u64, Postcard<User>> = db.open_or_create_table("users")?.typed();
/// let ada = User { name: "Ada".to_owned(), logins: 1 };
/// users.put(7, &ada)?;
/// assert_eq!(users.get(7)?, Some(ada));
/// # Ok::<(), terrace::Error>(())
/// ```
#[cfg(feature = "serde")]
#[derive(Debug)]
pub struct Postcard<T>(std::marker::PhantomData<fn() -> T>);

#[cfg(feature = "serde")]
impl<T: serde::de::DeserializeOwned> Value for Postcard<T> {
    type Owned = T;

    fn decode(bytes: &[u8]) -> Result<T, Misfit> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(format!("{} bytes more than the value has", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(feature = "serde")]
fn encode_with_postcard<T: serde::Serialize>(value: &T, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
    let encoded = postcard::to_extend(value, std::mem::take(bytes)).map_err(|error| error.to_string())?;
    *bytes = encoded;
    Ok(())
}

#[cfg(feature = "serde")]
impl<T: serde::Serialize> AsValue<Postcard<T>> for T {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
        encode_with_postcard(self, bytes)
    }
}

#[cfg(feature = "serde")]
impl<T: serde::Serialize> AsValue<Postcard<T>> for &T {
    fn encode(&self, bytes: &mut Vec<u8>) -> Result<(), Misfit> {
        encode_with_postcard(*self, bytes)
    }
}
