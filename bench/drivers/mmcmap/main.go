// A driver of the lab: answers requests of the line protocol (docs/lab/drivers.md) for mmcmap. Only answers go to the
// standard output.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

// The module of the library, by which its version is found in this program.
const module = "github.com/sirgallo/mmcmap"

// The length that stands for "nothing was found".
const absent = ^uint32(0)

// What a store cannot do. It is shown as n/a and fails nothing.
type unsupported string

func (reason unsupported) Error() string { return string(reason) }

const (
	hasNoCommits     = unsupported("has no transactions: every operation is a commit of its own")
	hasNoOrder       = unsupported("has no order: its keys are hashed, and it lists none of them")
	hasNoCompaction  = unsupported("cannot be compacted: its file never shrinks")
	hasNoCheckpoints = unsupported("has no checkpoints")
)

type hello struct {
	Protocol   int         `json:"protocol"`
	Name       string      `json:"name"`
	Version    string      `json:"version"`
	Classes    [][2]string `json:"classes"`
	Options    []string    `json:"options"`
	Persistent bool        `json:"persistent"`
	Single     string      `json:"single"`
}

func main() {
	answers := os.Stdout
	// A library that prints would print into the protocol.
	os.Stdout = os.Stderr
	driver := &driver{}
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		answer, err := driver.answer(strings.Split(requests.Text(), "\t"))
		var reason unsupported
		switch {
		case errors.As(err, &reason):
			answer = map[string]string{"unsupported": string(reason)}
		case err != nil:
			answer = map[string]string{"error": err.Error()}
		}
		line, err := json.Marshal(answer)
		if err != nil {
			panic(err)
		}
		if _, err := answers.Write(append(line, '\n')); err != nil {
			// Nobody is there to be answered.
			return
		}
	}
}

// The state between requests.
type driver struct {
	store *store
}

// Returns what is said in answer: an object, or an error.
func (d *driver) answer(words []string) (any, error) {
	done := struct{}{}
	switch {
	case words[0] == "hello":
		return describe(), nil
	case words[0] == "open" && len(words) == 4:
		if d.store != nil {
			return nil, errors.New("a store is open already")
		}
		opened, err := open(words[1], words[2])
		d.store = opened
		return done, err
	case d.store == nil:
		return nil, fmt.Errorf("no store is open: %s", words[0])
	case words[0] == "run" && len(words) == 8:
		return run(d.store, words[1:])
	case words[0] == "fetch" && len(words) == 4:
		keyBytes, err := strconv.Atoi(words[2])
		if err != nil {
			return nil, err
		}
		return done, fetch(d.store, words[1], keyBytes, words[3])
	case words[0] == "sync":
		return done, d.store.sync()
	case words[0] == "list":
		return nil, hasNoOrder
	case words[0] == "compact":
		return nil, hasNoCompaction
	case words[0] == "checkpoint":
		return nil, hasNoCheckpoints
	case words[0] == "close":
		closing := d.store
		d.store = nil
		return done, closing.close()
	}
	return nil, fmt.Errorf("not a request: %q", words)
}

func describe() hello {
	return hello{
		Protocol: 1,
		Name:     "mmcmap",
		Version:  "mmcmap " + libraryVersion() + ", " + runtime.Version(),
		Classes: [][2]string{{"written",
			"as it comes: a put ends when it is in a shared mapping of the file; it is synced in the background"}},
		Options: []string{
			"none: the library has no options",
			"goroutines are not bound to threads, as its callers have it: each is given an even share of the " +
				"processor time of the process",
		},
		Persistent: true,
		Single:     string(hasNoCommits),
	}
}

// The version that this program was built with.
func libraryVersion() string {
	information, ok := debug.ReadBuildInfo()
	if !ok {
		return "of unknown version"
	}
	for _, dependency := range information.Deps {
		if dependency.Path == module {
			if dependency.Replace != nil {
				return "from a local directory"
			}
			return dependency.Version
		}
	}
	return "of unknown version"
}

// Reads keys that stand side by side in a file, and writes what was found into another.
func fetch(store *store, path string, keyBytes int, out string) error {
	keys, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if keyBytes <= 0 || len(keys)%keyBytes != 0 {
		return fmt.Errorf("a file of %d bytes holds no keys of %d bytes", len(keys), keyBytes)
	}
	var all bytes.Buffer
	for at := 0; at < len(keys); at += keyBytes {
		found, err := store.get(keys[at : at+keyBytes])
		if err != nil {
			return err
		}
		length := absent
		if found != nil {
			length = uint32(len(found))
		}
		all.Write(binary.LittleEndian.AppendUint32(nil, length))
		all.Write(found)
	}
	// The file is there: it belongs to the lab.
	file, err := os.OpenFile(out, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(all.Bytes())
	return errors.Join(err, file.Close())
}
