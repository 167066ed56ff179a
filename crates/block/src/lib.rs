//! Block devices, directories of files, and memory regions: everything of the machine that the engine touches.
