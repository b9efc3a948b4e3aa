package threshold

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-node/berth/eviction/signal"
	"github.com/berth-node/berth/internal/quantity"
)

// The longest settings are far shorter. What is longer is refused before anything looks at it.
const maxText = 4096

// The settings by the names of their flags, which errors have.
const (
	flagHard       = "--eviction-hard"
	flagSoft       = "--eviction-soft"
	flagSoftGrace  = "--eviction-soft-grace-period"
	flagMinReclaim = "--eviction-minimum-reclaim"
)

// ParseHard reads the value of --eviction-hard, such as "memory.available<100Mi,nodefs.available<10%", into kubelet's
// map of evictionHard. It looks at the form only: what the map says is checked by [Settings.Policy].
func ParseHard(text string) (map[string]string, error) { return parsePairs(flagHard, text) }

// ParseSoft reads the value of --eviction-soft.
func ParseSoft(text string) (map[string]string, error) { return parsePairs(flagSoft, text) }

// What stands between a signal and its value, and what people write there by mistake.
const (
	operator  = "<"
	operators = "<>=!"
)

// parsePairs reads signals with values, each pair with the operator between. No pair at all is an empty map, which is
// not nil: somebody wants none.
func parsePairs(flag, text string) (map[string]string, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("%s: has %d bytes, more than %d", flag, len(text), maxText)
	}
	out := map[string]string{}
	for one := range strings.SplitSeq(text, ",") {
		one = strings.TrimSpace(one)
		if one == "" {
			continue
		}
		at := strings.IndexAny(one, operators)
		if at < 0 {
			return nil, errForm(flag, one)
		}
		value := strings.TrimLeft(one[at:], operators)
		if used := one[at : len(one)-len(value)]; used != operator {
			return nil, fmt.Errorf("%s %q: has %s, and can have %s only, such as %s", flag, one, used, operator, example)
		}
		name, value := strings.TrimSpace(one[:at]), strings.TrimSpace(value)
		if name == "" || value == "" {
			return nil, errForm(flag, one)
		}
		if before, twice := out[name]; twice {
			return nil, fmt.Errorf("%s: has %s twice, %s and %s: leave one", flag, name, before, value)
		}
		out[name] = value
	}
	return out, nil
}

const example = "memory.available<100Mi"

func errForm(flag, one string) error {
	return fmt.Errorf("%s %q: must be a signal, %s and a value, such as %s", flag, one, operator, example)
}

// parseSignal refuses what is no signal.
func parseSignal(flag, name string) (signal.Signal, error) {
	s := signal.Signal(name)
	if slices.Contains(signal.All(), s) {
		return s, nil
	}
	names := make([]string, 0, len(signal.All()))
	for _, one := range signal.All() {
		names = append(names, string(one))
	}
	return "", fmt.Errorf("%s: %q is no signal: must be one of %s", flag, name, strings.Join(names, ", "))
}

// errOff says that a threshold is one that is never met.
var errOff = errors.New("the threshold is off")

// parseValue reads a threshold's value. 0% and 100% turn it off, as kubelet's documentation has it.
func parseValue(flag string, of signal.Signal, text string) (Value, error) {
	if strings.HasSuffix(text, "%") {
		percent, err := parsePercent(flag, of, text)
		if err == nil && (percent == 0 || percent == 100) {
			err = errOff
		}
		return Value{Percent: percent}, err
	}
	n, err := parseQuantity(flag, of, text)
	if err == nil && n == 0 {
		err = fmt.Errorf("%s %s<%s: must be more than 0: turn a threshold off with 0%%", flag, of, text)
	}
	return Value{Quantity: n}, err
}

// parseReclaim reads a minimum reclaim, which may be nothing.
func parseReclaim(of signal.Signal, text string) (Value, error) {
	if strings.HasSuffix(text, "%") {
		percent, err := parsePercent(flagMinReclaim, of, text)
		return Value{Percent: percent}, err
	}
	n, err := parseQuantity(flagMinReclaim, of, text)
	return Value{Quantity: n}, err
}

func parsePercent(flag string, of signal.Signal, text string) (float64, error) {
	f, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %q is no percentage: must be a number and %%, such as 10%%", flag, of, text)
	}
	if !(f >= 0 && f <= 100) { // not a number is neither
		return 0, fmt.Errorf("%s %s: %s is not from 0%% to 100%%", flag, of, text)
	}
	return f, nil
}

func parseQuantity(flag string, of signal.Signal, text string) (int64, error) {
	q, err := quantity.Parse(text)
	if errors.Is(err, quantity.ErrLarge) && !strings.HasPrefix(text, "-") {
		return 0, fmt.Errorf("%s %s: %s is more than anything has: must be less than 8Ei", flag, of, text)
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s: %q is no quantity: must be such as 100Mi, or a percentage such as 10%%",
			flag, of, text)
	}
	if q.Sign() < 0 {
		return 0, fmt.Errorf("%s %s: %s is negative: must be more than 0", flag, of, text)
	}
	return q.Value(), nil
}

func parseGrace(of signal.Signal, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %q is no duration: must be such as 1m30s", flagSoftGrace, of, text)
	}
	if d < 0 {
		return 0, fmt.Errorf("%s %s: %s is negative: must be 0s or more", flagSoftGrace, of, text)
	}
	return d, nil
}
