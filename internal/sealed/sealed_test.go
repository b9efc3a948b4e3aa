package sealed

import (
	"encoding/json"
	"errors"
	"testing"
)

// TestEachBit has each bit of a sealed object turn over: what it says is as it was, or it is known that it is not.
func TestEachBit(t *testing.T) {
	type object struct {
		A string `json:"a"`
		B int    `json:"b"`
	}
	want := object{"some text", 42}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	text = Seal(text)
	if err := Check(text); err != nil {
		t.Fatal(err)
	}
	known := 0
	for i := range text {
		for bit := range 8 {
			text[i] ^= 1 << bit
			var got object
			if err := Check(text); errors.Is(err, ErrChanged) {
				known++
			} else if json.Unmarshal(text, &got) == nil && got != want {
				t.Errorf("bit %d of byte %d: %s says %+v", bit, i, text, got)
			}
			text[i] ^= 1 << bit
		}
	}
	if known < 8*len(`{"a":"some text","b":42`) {
		t.Errorf("%d are known", known)
	}
}

func TestUnsealed(t *testing.T) {
	for _, text := range []string{"", "{}", "null", `{"a":1}`, `{"sum":"x"}`, `}`} {
		if err := Check([]byte(text)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if err := Check(Seal([]byte(text))); err != nil {
			t.Errorf("sealed %s: %v", text, err)
		}
	}
}
