// A program that gives a history of `etcd_torture.rs` to porcupine: each key has to be a linearisable register.
//
// Its argument is the file, with an operation a line. It prints how many operations it has checked, or fails.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"os"

	"github.com/anishathalye/porcupine"
)

// operation is a line of a history. Values are positive; 0 stands for a key that is missing.
type operation struct {
	Client int
	Key    int
	// "read", "write", "delete" or "swap".
	Input string
	// What a write or a swap stores.
	Value int64
	// What a swap expects to find.
	Expected int64
	// What a read has found, or whether a swap took place; nil: the outcome is unknown.
	Output *output
	Call   int64
	// nil where the outcome is unknown: the operation may take effect at any time after the call, or never.
	Return *int64
}

type output struct {
	Found   int64
	Swapped bool
}

var register = porcupine.Model{
	Init: func() interface{} { return int64(0) },
	Step: func(state, input, _ interface{}) (bool, interface{}) {
		before, done := state.(int64), input.(operation)
		switch done.Input {
		case "read":
			return done.Output.Found == before, before
		case "write":
			return true, done.Value
		case "delete":
			return true, int64(0)
		case "swap":
			holds := done.Expected == before
			if done.Output != nil && done.Output.Swapped != holds {
				return false, before
			}
			if holds {
				return true, done.Value
			}
			return true, before
		}
		log.Fatalf("%q is no operation", done.Input)
		return false, before
	},
}

func main() {
	log.SetFlags(0)
	file, err := os.Open(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	histories := map[int][]porcupine.Operation{}
	count := 0
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var done operation
		if err := json.Unmarshal(lines.Bytes(), &done); err != nil {
			log.Fatalf("%s: %v", lines.Text(), err)
		}
		end := int64(math.MaxInt64)
		if done.Return != nil {
			end = *done.Return
		}
		histories[done.Key] = append(histories[done.Key],
			porcupine.Operation{ClientId: done.Client, Input: done, Call: done.Call, Return: end})
		count++
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	for key, history := range histories {
		if !porcupine.CheckOperations(register, history) {
			log.Fatalf("key %d is no linearisable register", key)
		}
	}
	fmt.Println(count, "operations are linearisable")
}
