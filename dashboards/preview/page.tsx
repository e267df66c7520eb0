// Draws one dashboard from its JSON and the answers that window.PREVIEW holds, with Grafana's own components where npm
// has them. It is a preview: see README.md for the differences.
import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';
import 'uplot/dist/uPlot.min.css';

import { Global, css } from '@emotion/react';
import { DataFrame, ThemeContext, TimeRange, createTheme, dateTime, getFieldDisplayValues } from '@grafana/data';
import { BigValue, ErrorBoundary, GlobalStyles, PanelChrome, TimeSeries, UPlotConfigBuilder, useTheme2 } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { ReactNode, useLayoutEffect } from 'react';
import { createRoot } from 'react-dom/client';

import { Heatmap, StateTimeline } from './drawn';
import { Answer, configured, series, table, transformed } from './frames';

type Mark = { from: number; to: number };
type Dot = { at: number; value: number };
type Asked = { step: number; answers: Record<string, Answer>; dots: Dot[] };
type Preview = {
  dashboard: any; theme: 'light' | 'dark'; from: number; to: number; span: string; chosen: Record<string, string>;
  asked: Record<string, Asked>; marks: Mark[];
};
type Drawn = { panel: any; frames: DataFrame[]; width: number; height: number; range: TimeRange; marks: Mark[]; dots: Dot[] };

const { dashboard, theme: mode, from, to, span, chosen, asked, marks }: Preview = (window as any).PREVIEW;
const range: TimeRange = { from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: `now-${span}`, to: 'now' } };
const theme = createTheme({ colors: { mode } });
const WIDTH = 1600, EDGE = 16, GAP = 8, CELL = 30, TOP = 96; // TOP and CELL + GAP are in rendering.py too
const COLUMN = (WIDTH - 2 * EDGE + GAP) / 24;

/** The kinds of panels that the preview can draw; a test compares them with the pages. */
const KINDS: Record<string, (drawn: Drawn) => ReactNode> = {
  'stat': Stat,
  'table': Table,
  'timeseries': Lines,
  'state-timeline': StateTimelinePanel,
  'heatmap': HeatmapPanel,
};

function Stat({ panel, frames, width, height }: Drawn) {
  const { reduceOptions, colorMode, graphMode, textMode } = panel.options;
  const values = getFieldDisplayValues({
    fieldConfig: panel.fieldConfig, reduceOptions, replaceVariables: (it) => it, theme, data: frames,
    sparkline: graphMode !== 'none', timeZone: 'utc',
  });
  const across = width >= height * 1.5;
  return (
    <div style={{ display: 'flex', flexDirection: across ? 'row' : 'column', gap: 8 }}>
      {values.map(({ display, sparkline }, place) => (
        <BigValue key={place} value={display} sparkline={sparkline} colorMode={colorMode} graphMode={graphMode} textMode={textMode}
          theme={theme} count={values.length} width={across ? (width - 8 * (values.length - 1)) / values.length : width}
          height={across ? height : (height - 8 * (values.length - 1)) / values.length} />
      ))}
    </div>
  );
}

function Table({ panel, frames, width, height }: Drawn) {
  return (
    <TableNG data={frames[0]} width={width} height={height} cellHeight={panel.options.cellHeight} sortBy={panel.options.sortBy}
      fieldConfig={panel.fieldConfig} structureRev={1} enableVirtualization={false} />
  );
}

function Lines({ panel, frames, width, height, marks, dots }: Drawn) {
  return (
    <TimeSeries frames={frames} width={width} height={height} timeRange={range} timeZone="utc" legend={panel.options.legend}>
      {(builder) => <Marks builder={builder} marks={marks} dots={dots} />}
    </TimeSeries>
  );
}

/** Annotations as the dashed lines that Grafana draws, and exemplars as squares. */
function Marks({ builder, marks, dots }: { builder: UPlotConfigBuilder; marks: Mark[]; dots: Dot[] }) {
  const { colors } = useTheme2();
  useLayoutEffect(() => {
    builder.addHook('draw', (plot: uPlot) => {
      const { ctx, bbox } = plot;
      const scale = Object.keys(plot.scales).find((it) => it !== 'x')!;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      ctx.strokeStyle = ctx.fillStyle = dashboard.annotations.list[0]?.iconColor ?? colors.error.main;
      for (const { from, to } of marks) {
        const [left, right] = [from, to].map((it) => plot.valToPos(it * 1000, 'x', true));
        ctx.globalAlpha = 0.08;
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
        ctx.globalAlpha = 0.7;
        ctx.setLineDash([5, 5]);
        ctx.beginPath();
        ctx.moveTo(left, bbox.top);
        ctx.lineTo(left, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      ctx.fillStyle = colors.text.secondary;
      for (const { at, value } of dots) {
        const [x, y] = [plot.valToPos(at * 1000, 'x', true), plot.valToPos(value, scale, true)];
        ctx.fillRect(x - 2, y - 2, 4, 4);
      }
      ctx.restore();
    });
  }, [builder, marks, dots, colors]);
  return null;
}

function StateTimelinePanel({ panel, ...drawn }: Drawn) {
  return <StateTimeline {...drawn} options={panel.options} />;
}

function HeatmapPanel({ panel, ...drawn }: Drawn) {
  return <Heatmap {...drawn} options={panel.options} />;
}

function Said({ text, bad }: { text: string; bad?: boolean }) {
  const { text: plain, error } = theme.colors;
  const style = { height: '100%', display: 'grid', placeItems: 'center', textAlign: 'center', padding: 8 } as const;
  return <div style={{ ...style, color: bad ? error.text : plain.secondary, overflow: 'hidden' }}>{text}</div>;
}

/** The frames of a panel, as Grafana passes them to the panel. */
async function framed(panel: any, { answers, step }: Asked): Promise<DataFrame[]> {
  const flat = panel.targets[0].format === 'table';
  const frames = panel.targets.flatMap((target: any) =>
    flat ? [table(target, answers[target.refId], panel.targets.length === 1)] : series(target, answers[target.refId], step));
  const full = flat ? frames.filter((it: DataFrame) => it.length) : frames;
  return configured(full.length ? await transformed(full, panel.transformations ?? []) : [], panel.fieldConfig, theme);
}

function Inside({ panel, frames, width, height, fault }: { panel: any; frames: DataFrame[]; width: number; height: number; fault: string }) {
  const Kind = KINDS[panel.type];
  if (fault) return <Said bad text={fault} />;
  if (!Kind) return <Said bad text={`the preview does not know panels of the type ${panel.type}`} />;
  if (!frames.some((it) => it.length) && panel.type !== 'stat') return <Said text={panel.fieldConfig.defaults.noValue ?? 'No data'} />;
  const { dots } = asked[panel.id];
  return (
    <ErrorBoundary>
      {({ error }) => (error ? <Said bad text={String(error)} /> : <Kind {...{ panel, frames, width, height, range, marks, dots }} />)}
    </ErrorBoundary>
  );
}

function Panel({ panel, frames, fault }: { panel: any; frames: DataFrame[]; fault: string }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * COLUMN - GAP, h * (CELL + GAP) - GAP];
  return (
    <div style={{ position: 'absolute', left: EDGE + x * COLUMN, top: TOP + y * (CELL + GAP), width, height }}>
      {panel.type === 'row' ? <h6 style={{ padding: '6px 4px' }}>⌄ {panel.title}</h6> : (
        <PanelChrome title={panel.title} description={panel.description} width={width} height={height} statusMessage={fault || undefined}>
          {(inner, tall) => <Inside panel={panel} frames={frames} width={inner} height={tall} fault={fault} />}
        </PanelChrome>
      )}
    </div>
  );
}

function Head() {
  const { colors } = theme;
  const box = { border: `1px solid ${colors.border.medium}`, background: colors.background.primary, borderRadius: 2, padding: '4px 8px' };
  const choices = dashboard.templating.list.filter((it: any) => it.type === 'query');
  const when = `${dateTime(from * 1000).utc().format('YYYY-MM-DD HH:mm')} to ${dateTime(to * 1000).utc().format('HH:mm')} UTC`;
  return (
    <header style={{ position: 'absolute', left: EDGE, right: EDGE, top: 10, color: colors.text.primary }}>
      <div style={{ display: 'flex', justifyContent: 'space-between', alignItems: 'center' }}>
        <h4 style={{ margin: 0 }}>{dashboard.title}</h4>
        <span style={box}>{when}</span>
      </div>
      <div style={{ display: 'flex', gap: 12, alignItems: 'center', marginTop: 8 }}>
        {choices.map((it: any) => (
          <span key={it.name}><span style={{ ...box, background: colors.background.secondary }}>{it.label}</span>
            <span style={box}>{chosen[it.name] ?? 'All'}</span></span>
        ))}
        <span style={{ color: colors.text.secondary, marginLeft: 'auto' }}>{dashboard.description}</span>
      </div>
    </header>
  );
}

async function draw() {
  const panels = await Promise.all(dashboard.panels.map(async (panel: any) => {
    const faults = panel.type === 'row' ? [] : Object.values(asked[panel.id].answers).flatMap((it) => it.error ?? []);
    let frames: DataFrame[] = [];
    try {
      if (panel.type !== 'row' && !faults.length) frames = await framed(panel, asked[panel.id]);
    } catch (error) {
      faults.push(String(error));
    }
    return <Panel key={panel.id} panel={panel} frames={frames} fault={faults.join('; ')} />;
  }));
  createRoot(document.getElementById('page')!).render(
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <Global styles={css({ body: { overflow: 'hidden', background: theme.colors.background.canvas } })} />
      <Head />
      {panels}
    </ThemeContext.Provider>,
  );
}

Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 12px Inter`))).then(draw);
