package main

import (
	"bytes"
	"errors"
	"image/color"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/ratelimit-go/ratelimit/benchmarks/contenders"
)

// plotted are the scenarios in the plot, from the top, with short labels.
var plotted = []struct{ id, label string }{
	{"I1k", "1,000 idle keys"},
	{"I1kp", "the same from all cores"},
	{"I100k", "100,000 idle keys"},
	{"I100kp", "the same from all cores"},
	{"S1", "one hot key, allowed"},
	{"S5", "the same from all cores"},
	{"S2", "one hot key, denied"},
	{"S2p", "the same from all cores"},
	{"S3", "1,000 keys"},
	{"S4", "1 M keys, cold"},
	{"S4h", "1 M keys, keys warm"},
	{"S6", "1 M keys, cold, all cores"},
	{"S6h", "1 M keys, warm, all cores"},
	{"S7", "1 M keys never seen"},
}

// The style of the plot.
var (
	ink      = color.RGBA{0x1f, 0x23, 0x28, 0xff}
	faint    = color.RGBA{0x6e, 0x77, 0x81, 0xff}
	grid     = color.RGBA{0xe4, 0xe7, 0xeb, 0xff}
	ownBlue  = color.RGBA{0x09, 0x69, 0xda, 0xff}
	ownPale  = color.RGBA{0x8c, 0xbd, 0xf5, 0xff}
	peerGrey = color.RGBA{0xb3, 0xba, 0xc2, 0xff}
	peerBest = color.RGBA{0xbc, 0x4c, 0x00, 0xff}
)

// errNothingToPlot means that a partial run measured none of the plotted scenarios.
var errNothingToPlot = errors.New("nothing to plot: none of the plotted rows (I1k, I100k, S1 to S7) was measured; select some of them with -run, or omit -run")

// A marks is a kind of point in the plot.
type marks struct {
	name  string
	style draw.GlyphStyle
	at    plotter.XYs
}

// writePlot draws the time per decision of every contender, and writes it as
// SVG to path.
func writePlot(path string, res *results, all []contenders.Contender) error {
	circle := func(c color.Color, radius vg.Length) draw.GlyphStyle {
		return draw.GlyphStyle{Color: c, Radius: radius, Shape: draw.CircleGlyph{}}
	}
	var (
		peers    = marks{name: "other libraries", style: circle(peerGrey, 4)}
		variants = marks{name: "ratelimit, its other variants", style: circle(ownPale, 3)}
		best     = marks{name: "the best of the others", style: circle(peerBest, 4.5)}
		own      = marks{name: "ratelimit, token bucket", style: circle(ownBlue, 6)}
	)
	var rows []plot.Tick
	var ownNotes, bestNotes plotter.XYLabels
	low, high := math.Inf(1), 0.0
	for i, p := range plotted {
		y := float64(len(plotted) - 1 - i)
		rows = append(rows, plot.Tick{Value: y, Label: p.label})
		entries := res.of(p.id, all)
		peer, hasPeer := first(entries, contenders.Peer)
		for _, e := range entries {
			if e.Role == contenders.Floor || e.Role == contenders.Bound || e.wrong > 0 {
				continue
			}
			at := plotter.XY{X: e.median(), Y: y}
			low, high = min(low, at.X), max(high, at.X)
			switch {
			case e.Role == contenders.Main:
				own.at = append(own.at, at)
				note(&ownNotes, at, number(at.X, nanoseconds))
			case e.Role == contenders.Variant:
				variants.at = append(variants.at, at)
			case hasPeer && e.Name == peer.Name:
				best.at = append(best.at, at)
				note(&bestNotes, at, number(at.X, nanoseconds)+"  "+e.Name)
			default:
				peers.at = append(peers.at, at)
			}
		}
	}
	if high == 0 {
		return errNothingToPlot
	}

	p := newPlot(rows, low, high)
	for _, m := range []marks{peers, variants, best, own} { // the last one on top
		if m.at == nil {
			continue
		}
		points, err := plotter.NewScatter(m.at)
		if err != nil {
			return err
		}
		points.GlyphStyle = m.style
		p.Add(points)
	}
	for _, m := range []marks{own, best, peers, variants} {
		if m.at != nil {
			p.Legend.Add(m.name, &plotter.Scatter{GlyphStyle: m.style})
		}
	}
	// Notes above and below the row, so that they do not overlap.
	if err := addNotes(p, bestNotes, style(10.5, peerBest, text.XLeft, text.YBottom), vg.Point{X: -3, Y: 7}); err != nil {
		return err
	}
	if err := addNotes(p, ownNotes, style(10.5, ownBlue, text.XCenter, text.YTop), vg.Point{Y: -8}); err != nil {
		return err
	}
	return save(path, p, 13*vg.Inch, vg.Length(len(plotted))*0.62*vg.Inch+2.2*vg.Inch)
}

func note(l *plotter.XYLabels, at plotter.XY, words string) {
	l.XYs = append(l.XYs, at)
	l.Labels = append(l.Labels, words)
}

func addNotes(p *plot.Plot, l plotter.XYLabels, s text.Style, offset vg.Point) error {
	notes, err := plotter.NewLabels(l)
	if err != nil {
		return err
	}
	notes.Offset = offset
	for i := range notes.TextStyle {
		notes.TextStyle[i] = s
	}
	p.Add(notes)
	return nil
}

func style(size vg.Length, c color.Color, x text.XAlignment, y text.YAlignment) text.Style {
	return text.Style{
		Color:   c,
		Font:    font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, size),
		XAlign:  x,
		YAlign:  y,
		Handler: plot.DefaultTextHandler,
	}
}

// newPlot returns an empty plot with a row for each scenario and a logarithmic axis of
// nanoseconds from low to high.
func newPlot(rows []plot.Tick, low, high float64) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text = "Nanoseconds per decision"
	p.Title.TextStyle = style(18, ink, text.XCenter, text.YTop)
	p.Title.Padding = 14

	p.X.Scale = plot.LogScale{}
	p.X.Min, p.X.Max = low/1.25, high*1.25
	var ticks plot.ConstantTicks
	for power := 1.0; power < 1e9; power *= 10 {
		for _, digit := range []float64{1, 2, 5} {
			if v := digit * power; v >= p.X.Min && v <= p.X.Max {
				ticks = append(ticks, plot.Tick{Value: v, Label: message.NewPrinter(language.English).Sprintf("%d", int(v))})
			}
		}
	}
	p.X.Tick.Marker = ticks
	p.X.Tick.Label = style(12, faint, text.XCenter, text.YTop)
	p.X.Label.Text = "median; logarithmic; further left is faster"
	p.X.Label.TextStyle = style(12, faint, text.XCenter, text.YTop)
	p.X.Label.Padding = 6
	p.X.Width = 0
	p.X.Tick.Width = 0
	p.X.Padding = 4

	p.Y.Min, p.Y.Max = -0.5, float64(len(rows))+0.5 // room for the legend
	p.Y.Tick.Marker = plot.ConstantTicks(rows)
	p.Y.Tick.Label = style(13, ink, text.XRight, text.YCenter)
	p.Y.Tick.Width = 0
	p.Y.Width = 0

	lines := plotter.NewGrid()
	lines.Vertical.Color, lines.Horizontal.Color = grid, grid
	lines.Vertical.Width, lines.Horizontal.Width = 0.8, 0.8
	p.Add(lines)

	p.Legend.TextStyle = style(12, ink, text.XLeft, text.YBottom)
	p.Legend.Top, p.Legend.Left = true, false
	p.Legend.Padding = 4
	p.Legend.ThumbnailWidth = 16
	return p
}

// save writes p to path, and creates its folder if necessary.
func save(path string, p *plot.Plot, width, height vg.Length) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	canvas := vgsvg.New(width, height)
	frame := draw.New(canvas)
	frame.SetColor(color.White)
	frame.Fill(frame.Path())
	p.Draw(draw.Crop(frame, 16, -24, 12, -12))
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return err
	}
	// The font has the same metrics as Arial, which is a good fallback.
	svg := bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
	return os.WriteFile(path, svg, 0o644)
}
