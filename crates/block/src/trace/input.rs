//! The bytes of a trace as lines or records, counted, and taken out of Zstandard frames where there are any.
//!
//! A compressed file is any number of frames one after another, those to be skipped among them; the checksum of a
//! frame that has one is verified. One buffer of decompressed bytes, one line, and the window that the frame asks for,
//! at most 128 MiB, are all the memory this takes.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::{LINE_BYTES_MAX, advance};

/// Bytes read or decompressed at a time.
const BUFFER_BYTES: usize = 128 << 10;

/// A trace's file.
pub(super) struct Input {
    reader: Box<dyn BufRead + Send>,
    line: Vec<u8>,
    /// The line or record that was read last, from 1 on.
    number: u64,
}

impl Input {
    pub(super) fn new(
        reader: impl Read + Send + 'static,
        compressed: bool,
        bytes_read: Arc<AtomicU64>,
    ) -> Input {
        let file = BufReader::with_capacity(BUFFER_BYTES, Counted { reader, bytes_read });
        let reader: Box<dyn BufRead + Send> = match compressed {
            true => Box::new(BufReader::with_capacity(BUFFER_BYTES, Frames::new(file))),
            false => Box::new(file),
        };
        Input { reader, line: Vec::new(), number: 0 }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its end, or nothing after the last.
    pub(super) fn line(&mut self) -> io::Result<Option<&[u8]>> {
        self.number += 1;
        self.line.clear();
        let mut limited = Read::take(&mut self.reader, LINE_BYTES_MAX as u64 + 1);
        if limited.read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() > LINE_BYTES_MAX {
            return Err(invalid(format!("it is longer than {LINE_BYTES_MAX} bytes")));
        }
        Ok(Some(&self.line))
    }

    /// The next record of `N` bytes, or nothing after the last.
    #[inline]
    pub(super) fn record<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        self.number += 1;
        let buffer = self.reader.fill_buf()?;
        if let Some((record, _)) = buffer.split_first_chunk::<N>() {
            let record = *record;
            self.reader.consume(N);
            return Ok(Some(record));
        }
        self.split_record()
    }

    /// A record that two buffers share.
    fn split_record<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let mut record = [0; N];
        let mut length = 0;
        while length < N {
            match self.reader.read(&mut record[length..]) {
                Ok(0) if length == 0 => return Ok(None),
                Ok(0) => return Err(invalid(format!("it ends after {length} of its {N} bytes"))),
                Ok(bytes) => length += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(record))
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// Counts what is read.
struct Counted<R> {
    reader: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.reader.read(buffer)?;
        advance(&self.bytes_read, bytes);
        Ok(bytes)
    }
}

/// Decompresses frame after frame.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    /// A frame was begun and not all of it was read.
    in_frame: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Frames<R> {
        Frames { source, decoder: FrameDecoder::new(), in_frame: false }
    }

    /// Goes to the next frame; `false` if there is none.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut Read::take(&mut self.source, length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(invalid("the compressed file ends inside a frame".to_owned()));
                    }
                }
                Err(error) => return Err(damaged(&error)),
            }
        }
        Ok(false)
    }

    /// Checks the frame that was read to its end.
    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let (told, found) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        match told {
            Some(told) if Some(told) != found => {
                Err(invalid("the checksum of a compressed frame does not hold".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

fn damaged(error: &FrameDecoderError) -> io::Error {
    invalid(format!("the compressed data are damaged: {error}"))
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame && !self.begin()? {
                return Ok(0);
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            if self.decoder.is_finished() {
                self.end()?;
                continue;
            }
            let strategy = BlockDecodingStrategy::UptoBlocks(1);
            self.decoder.decode_blocks(&mut self.source, strategy).map_err(|error| damaged(&error))?;
        }
    }
}
