// Package quantity reads quantities of Kubernetes that anybody may have written. resource.Quantity calculates every
// digit of a number such as 1e-999999999, some when it is parsed and others when they are compared or rounded, which
// takes for ever.
package quantity

import (
	"bytes"
	"errors"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// maxDigits bounds what is written out, and is far more than the 28 that anything has: 19 before the point, 9
	// after.
	maxDigits = 64
	// maxExponentDigits bounds what is not. An exponent of two digits takes the number out of what can be counted, and
	// no time to calculate.
	maxExponentDigits = 2
)

var (
	errForm   = errors.New("must be a quantity such as 100m, 2 or 128Mi")
	errCostly = errors.New("must be a quantity such as 100m, 2 or 128Mi, of at most 64 digits and with an exponent from -99 to 99")
	// ErrLarge is what 64 bits do not hold.
	ErrLarge = errors.New("must be less than 8Ei, which is all that can be counted")
)

// Parse is resource.ParseQuantity for text of anybody's. It refuses what 64 bits do not hold.
func Parse(text string) (resource.Quantity, error) {
	if costly(text) {
		return resource.Quantity{}, errCostly
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return resource.Quantity{}, errForm
	}
	if q.CmpInt64(math.MaxInt64) > 0 || q.CmpInt64(-math.MaxInt64) < 0 {
		return resource.Quantity{}, ErrLarge
	}
	return q, nil
}

// Costly says whether a text would take long to calculate as a quantity.
func Costly(text string) bool { return costly(text) }

// ProtobufPrefix is what an object in Kubernetes' envelope of protobuf begins with.
const ProtobufPrefix = "k8s\x00"

// Suspect says whether what was sent may have such a quantity in it, whether it is JSON, YAML or protobuf. Most has
// none, has no character that stands for another, and is what it looks like: that need not be read for it. In protobuf
// each character stands for itself, and lengths are zeros.
func Suspect(data []byte) bool {
	if message, is := bytes.CutPrefix(data, []byte(ProtobufPrefix)); is {
		return costly(message)
	}
	return bytes.ContainsAny(data, "\\\x00") || costly(data)
}

// costly says whether there is a number in a text that would take long to calculate, were it a quantity.
func costly[T string | []byte](text T) bool {
	digits := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c >= '0' && c <= '9' || c == '.':
			if digits++; digits > maxDigits {
				return true
			}
		case (c == 'e' || c == 'E') && digits > 0 && longExponent(text[i+1:]):
			return true
		default:
			digits = 0
		}
	}
	return false
}

// longExponent says so of what follows an e.
func longExponent[T string | []byte](text T) bool {
	i := 0
	if len(text) > 0 && (text[0] == '+' || text[0] == '-') {
		i++
	}
	for i < len(text) && text[i] == '0' {
		i++
	}
	for n := 0; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
		if n++; n > maxExponentDigits {
			return true
		}
	}
	return false
}
