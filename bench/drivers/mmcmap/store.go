package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sirgallo/mmcmap"
)

// A map that is open, and what is known of it.
//
// A put ends when its path is copied into a shared mapping of the file and the place of the new root is stored there:
// the kernel has it, so it survives the process. That is the class written. A goroutine of the library syncs the file
// now and then, and no put waits for it, so there is no class synced.
type store struct {
	pairs     *mmcmap.MMCMap
	directory string
	// Why nothing can be put, if so.
	torn error
	// Whether deleted keys are gone, once somebody asked.
	deletes error
	isAsked bool
}

func open(directory, class string) (*store, error) {
	if class != "written" {
		return nil, fmt.Errorf("has no class %s", class)
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	pairs, err := mmcmap.Open(mmcmap.MMCMapOpts{Filepath: filepath.Join(directory, "map")})
	if err != nil {
		return nil, err
	}
	torn, err := tear(pairs)
	if err != nil {
		return nil, errors.Join(err, pairs.Close())
	}
	return &store{pairs: pairs, directory: directory, torn: torn}, nil
}

// A put raises the version of the map, and stores the root of that version later. Where the process was killed between
// the two, every later put waits for a root that never comes: that is told instead of waited for.
func tear(pairs *mmcmap.MMCMap) (torn, err error) {
	meta, err := pairs.ReadMetaFromMemMap()
	if err != nil {
		return nil, err
	}
	root, err := pairs.ReadNodeFromMemMap(meta.RootOffset)
	if err != nil {
		return nil, err
	}
	if root.Version != meta.Version {
		torn = fmt.Errorf("the map was left in the middle of a put (version %d, root of version %d) and takes no more",
			meta.Version, root.Version)
	}
	return torn, nil
}

func (s *store) put(key, value []byte) error {
	_, err := s.pairs.Put(key, value)
	return err
}

func (s *store) delete(key []byte) error {
	_, err := s.pairs.Delete(key)
	return err
}

// The value, in the mapping: it is looked at before anything else is done with the map. nil when there is none.
func (s *store) get(key []byte) ([]byte, error) {
	return s.pairs.Get(key)
}

// Returns when everything so far survives power loss: a sync of a file takes in what was written through its mapping.
func (s *store) sync() error {
	return s.pairs.File.Sync()
}

func (s *store) close() error {
	return s.pairs.Close()
}

// Whether deleted keys are gone. Versions of the library acknowledge a delete and keep the key, for all keys that are
// not directly below the root; a delete that does nothing would have a speed. It is found out on another map, before
// the clock starts.
func (s *store) canDelete() error {
	if !s.isAsked {
		s.isAsked = true
		s.deletes = tryDeletes(filepath.Join(s.directory, "deletes"))
	}
	return s.deletes
}

func tryDeletes(path string) error {
	// Several for each of the 32 places below the root.
	const keys = 256
	pairs, err := mmcmap.Open(mmcmap.MMCMapOpts{Filepath: path})
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer pairs.Close()
	key := func(number uint32) []byte { return binary.BigEndian.AppendUint32(nil, number) }
	for number := uint32(0); number < keys; number++ {
		if _, err := pairs.Put(key(number), key(number)); err != nil {
			return err
		}
	}
	left := 0
	for number := uint32(0); number < keys; number++ {
		if _, err := pairs.Delete(key(number)); err != nil {
			return err
		}
		found, err := pairs.Get(key(number))
		if err != nil {
			return err
		}
		if found != nil {
			left++
		}
	}
	if left > 0 {
		return unsupported(fmt.Sprintf("its deletes do not delete: of %d keys, %d were there after it said that they were "+
			"deleted", keys, left))
	}
	return nil
}
