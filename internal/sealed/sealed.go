// Package sealed has a JSON object say whether it is what was written: its last field is the sum of all before it. A
// bit that has turned over on the disk may well leave JSON behind, by which something else would be done. Who does not
// know of the field reads the object as ever.
package sealed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
)

const (
	begin = `,"sum":"`
	end   = `"}`
	long  = 2 * sha256.Size
)

// ErrChanged is of an object that is not what was written.
var ErrChanged = errors.New("it is not what was written: its sum is another")

// Seal is a JSON object with its sum. One without any field has none.
func Seal(object []byte) []byte {
	body, ok := bytes.CutSuffix(object, []byte("}"))
	if !ok || len(body) < 2 {
		return object
	}
	out := make([]byte, 0, len(body)+len(begin)+long+len(end))
	out = append(append(out, body...), begin...)
	return append(append(out, sumOf(body)...), end...)
}

func sumOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// Check says whether a text is what was sealed. One that was not, as an earlier version has written it, says nothing.
func Check(text []byte) error {
	at := len(text) - len(begin) - long - len(end)
	if at < 0 || !bytes.HasPrefix(text[at:], []byte(begin)) || !bytes.HasSuffix(text, []byte(end)) {
		return nil
	}
	if string(text[at+len(begin):len(text)-len(end)]) != sumOf(text[:at]) {
		return ErrChanged
	}
	return nil
}
