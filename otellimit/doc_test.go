package otellimit

import (
	"os"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/ratelimit-go/ratelimit"
)

// TestTables compares the tables in the documentation with the metrics that the SDK collects,
// and their names with OpenTelemetry's rules.
func TestTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		provider, reader := newProvider()
		o, err := New(provider)
		require.NoError(t, err)
		decide(t, o)
		_, err = ObserveMemory(provider, "m", new(ratelimit.MemoryStore))
		require.NoError(t, err)
		_, err = observeRedis(provider, "r", redisStats)
		require.NoError(t, err)

		metrics, attributes := map[string]string{}, map[string]bool{}
		for _, m := range collect(t, reader) {
			assert.Regexp(t, `^ratelimit(\.[a-z]+(_[a-z]+)*)+$`, m.Name)
			assert.Regexp(t, `^(s|By|\{[a-z]+\})$`, m.Unit, m.Name)
			assert.Regexp(t, `^[A-Z].*[^.]$`, m.Description, m.Name)
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				metrics[m.Name] = map[bool]string{true: "Counter ", false: "UpDownCounter "}[data.IsMonotonic] + m.Unit
				for _, p := range data.DataPoints {
					for _, attr := range p.Attributes.ToSlice() {
						attributes[string(attr.Key)] = true
					}
				}
			case metricdata.Histogram[float64]:
				metrics[m.Name] = "Histogram " + m.Unit
			}
		}

		text, err := os.ReadFile("doc.go")
		require.NoError(t, err)
		documented := map[string]string{}
		for _, row := range regexp.MustCompile(`(?m)^//\t(\S+) +([A-Z]\w+) +(s|By|\{\w+\}) `).FindAllSubmatch(text, -1) {
			documented[string(row[1])] = string(row[2]) + " " + string(row[3])
			delete(attributes, string(row[1]))
		}
		assert.Equal(t, metrics, documented)
		named := map[string]bool{}
		for _, row := range regexp.MustCompile(`(?m)^//\t((?:ratelimit|error)\.\S+) +[a-z]`).FindAllSubmatch(text, -1) {
			named[string(row[1])] = true
		}
		assert.Equal(t, attributes, named)
	})
}
