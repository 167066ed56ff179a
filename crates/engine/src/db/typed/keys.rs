//! Keys of typed tables, encoded so that bytes and values have the same order.
//!
//! | type             | bytes                                                             |
//! |------------------|-------------------------------------------------------------------|
//! | unsigned         | big-endian                                                        |
//! | signed           | big-endian, with the sign bit inverted                            |
//! | `bool`, `char`   | one byte; the code point, 4 bytes big-endian                      |
//! | `[u8; N]`        | as they are                                                       |
//! | `String, Vec<u8>`| as they are; in a tuple `0` is `0 255`, and `0 0` is the end      |
//! | tuple            | its members, one after the other                                  |

/// Why bytes do not fit a type.
pub type Misfit = String;

/// The type of a table's keys; see [`TypedTable`](crate::TypedTable).
///
/// For integers, `bool`, `char`, `String`, `Vec<u8>`, `[u8; N]` and tuples of two to six of them.
/// An implementation for another type must keep its order in the bytes.
pub trait Key: AsKey<Self> + Sized {
    /// Takes a value from the front of `bytes`, where [`AsKey::encode_member`] put it.
    ///
    /// # Errors
    /// What does not fit.
    fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit>;

    /// The value of a whole key.
    ///
    /// # Errors
    /// What does not fit.
    fn decode(mut bytes: &[u8]) -> Result<Self, Misfit> {
        let value = Self::decode_member(&mut bytes)?;
        match bytes.len() {
            0 => Ok(value),
            more => Err(format!("{more} bytes more than a key has")),
        }
    }
}

/// A value that stands for a key of type `K`: `&str` for `String`, `&K` for `K`.
pub trait AsKey<K> {
    /// Appends the encoding of a member of a tuple, which tells its own end.
    fn encode_member(&self, bytes: &mut Vec<u8>);

    /// Appends the encoding of a whole key.
    fn encode(&self, bytes: &mut Vec<u8>) {
        self.encode_member(bytes);
    }
}

/// The beginning of keys of type `K`: of a string, or the first members of a tuple.
pub trait KeyPrefix<K> {
    /// Appends the bytes with which these keys begin.
    fn encode_prefix(&self, bytes: &mut Vec<u8>);
}

impl<K, Q: AsKey<K> + ?Sized> AsKey<K> for &Q {
    fn encode_member(&self, bytes: &mut Vec<u8>) {
        (**self).encode_member(bytes);
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        (**self).encode(bytes);
    }
}

impl<K, Q: KeyPrefix<K> + ?Sized> KeyPrefix<K> for &Q {
    fn encode_prefix(&self, bytes: &mut Vec<u8>) {
        (**self).encode_prefix(bytes);
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], Misfit> {
    let Some((taken, rest)) = bytes.split_first_chunk() else {
        return Err(format!("{} bytes instead of {N}", bytes.len()));
    };
    *bytes = rest;
    Ok(*taken)
}

macro_rules! integer_keys {
    ($($unsigned:ty, $signed:ty;)*) => { $(
        impl AsKey<$unsigned> for $unsigned {
            fn encode_member(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl Key for $unsigned {
            fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
                take(bytes).map(<$unsigned>::from_be_bytes)
            }
        }

        impl AsKey<$signed> for $signed {
            fn encode_member(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&(self ^ <$signed>::MIN).to_be_bytes());
            }
        }

        impl Key for $signed {
            fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
                take(bytes).map(|taken| <$signed>::from_be_bytes(taken) ^ <$signed>::MIN)
            }
        }
    )* };
}

integer_keys! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

impl AsKey<bool> for bool {
    fn encode_member(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(*self));
    }
}

impl Key for bool {
    fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
        match u8::decode_member(bytes)? {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(format!("the byte {byte} as a bool")),
        }
    }
}

impl AsKey<char> for char {
    fn encode_member(&self, bytes: &mut Vec<u8>) {
        u32::from(*self).encode_member(bytes);
    }
}

impl Key for char {
    fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
        let number = u32::decode_member(bytes)?;
        char::from_u32(number).ok_or_else(|| format!("the number {number:#x} as a char"))
    }
}

impl<const N: usize> AsKey<[u8; N]> for [u8; N] {
    fn encode_member(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

impl<const N: usize> Key for [u8; N] {
    fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
        take(bytes)
    }
}

impl AsKey<Vec<u8>> for [u8] {
    fn encode_member(&self, bytes: &mut Vec<u8>) {
        for &byte in self {
            bytes.push(byte);
            if byte == 0 {
                bytes.push(u8::MAX);
            }
        }
        bytes.extend_from_slice(&[0, 0]);
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

impl Key for Vec<u8> {
    fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
        let mut value = Vec::new();
        loop {
            match **bytes {
                [0, 0, ref rest @ ..] => {
                    *bytes = rest;
                    return Ok(value);
                }
                [0, u8::MAX, ref rest @ ..] => {
                    value.push(0);
                    *bytes = rest;
                }
                [] | [0] => return Err("a member of a tuple without its end".to_owned()),
                [0, byte, ..] => return Err(format!("the byte {byte} behind a 0")),
                [byte, ref rest @ ..] => {
                    value.push(byte);
                    *bytes = rest;
                }
            }
        }
    }

    fn decode(bytes: &[u8]) -> Result<Self, Misfit> {
        Ok(bytes.to_vec())
    }
}

impl<const N: usize> AsKey<Vec<u8>> for [u8; N] {
    fn encode_member(&self, bytes: &mut Vec<u8>) {
        self[..].encode_member(bytes);
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }
}

impl AsKey<String> for str {
    fn encode_member(&self, bytes: &mut Vec<u8>) {
        self.as_bytes().encode_member(bytes);
    }

    fn encode(&self, bytes: &mut Vec<u8>) {
        self.as_bytes().encode(bytes);
    }
}

impl Key for String {
    fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
        String::from_utf8(Vec::decode_member(bytes)?).map_err(|error| error.to_string())
    }

    fn decode(bytes: &[u8]) -> Result<Self, Misfit> {
        String::from_utf8(bytes.to_vec()).map_err(|error| error.to_string())
    }
}

macro_rules! borrowed_keys {
    ($($owned:ty, $borrowed:ty;)*) => { $(
        impl AsKey<$owned> for $owned {
            fn encode_member(&self, bytes: &mut Vec<u8>) {
                <$borrowed as AsKey<$owned>>::encode_member(self, bytes);
            }

            fn encode(&self, bytes: &mut Vec<u8>) {
                <$borrowed as AsKey<$owned>>::encode(self, bytes);
            }
        }

        impl KeyPrefix<$owned> for $borrowed {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                AsKey::<$owned>::encode(self, bytes);
            }
        }

        impl KeyPrefix<$owned> for $owned {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                AsKey::<$owned>::encode(self, bytes);
            }
        }
    )* };
}

borrowed_keys! { String, str; Vec<u8>, [u8]; }

macro_rules! tuple_keys {
    ($($key:ident $as_key:ident $member:ident),+) => {
        impl<$($key,)+ $($as_key: AsKey<$key>,)+> AsKey<($($key,)+)> for ($($as_key,)+) {
            fn encode_member(&self, bytes: &mut Vec<u8>) {
                let ($($member,)+) = self;
                $($member.encode_member(bytes);)+
            }
        }

        impl<$($key: Key,)+> Key for ($($key,)+) {
            fn decode_member(bytes: &mut &[u8]) -> Result<Self, Misfit> {
                Ok(($($key::decode_member(bytes)?,)+))
            }
        }
    };
}

tuple_keys! { A QA a, B QB b }
tuple_keys! { A QA a, B QB b, C QC c }
tuple_keys! { A QA a, B QB b, C QC c, D QD d }
tuple_keys! { A QA a, B QB b, C QC c, D QD d, E QE e }
tuple_keys! { A QA a, B QB b, C QC c, D QD d, E QE e, F QF f }

macro_rules! tuple_prefixes {
    ($($key:ident $as_key:ident $member:ident),+; $($rest:ident),+) => {
        impl<$($key,)+ $($rest,)+ $($as_key: AsKey<$key>,)+> KeyPrefix<($($key,)+ $($rest,)+)>
            for ($($as_key,)+)
        {
            fn encode_prefix(&self, bytes: &mut Vec<u8>) {
                let ($($member,)+) = self;
                $($member.encode_member(bytes);)+
            }
        }
    };
}

tuple_prefixes! { A QA a; B }
tuple_prefixes! { A QA a; B, C }
tuple_prefixes! { A QA a; B, C, D }
tuple_prefixes! { A QA a; B, C, D, E }
tuple_prefixes! { A QA a; B, C, D, E, F }
tuple_prefixes! { A QA a, B QB b; C }
tuple_prefixes! { A QA a, B QB b; C, D }
tuple_prefixes! { A QA a, B QB b; C, D, E }
tuple_prefixes! { A QA a, B QB b; C, D, E, F }
tuple_prefixes! { A QA a, B QB b, C QC c; D }
tuple_prefixes! { A QA a, B QB b, C QC c; D, E }
tuple_prefixes! { A QA a, B QB b, C QC c; D, E, F }
tuple_prefixes! { A QA a, B QB b, C QC c, D QD d; E }
tuple_prefixes! { A QA a, B QB b, C QC c, D QD d; E, F }
tuple_prefixes! { A QA a, B QB b, C QC c, D QD d, E QE e; F }
